"""The live jobs: four ranks on this machine, one fault each, in blocks of steps with and without.

The seeds below are published: they decide the weights, the data and the order of the
blocks, so that everybody runs the same jobs. What differs between runs is the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshscope.probe.schema.layout import ParallelLayout

SEED = 20_26_11
STEPS = 37
"""One to warm up, then six pairs of blocks."""
WINDOW = 3
"""Steps of a block with, or without, the fault."""
LAYER_MS = 20
"""Pace of a block's forward pass; ranks that sleep share two cores without taking turns."""
PIPELINE = ParallelLayout(pp=2, dp=2)
TENSOR = ParallelLayout(tp=2, dp=2)
NONE = "none"
TRIALS = 2
"""Runs of a healthy job with the same seed."""


@dataclass(frozen=True, kw_only=True)
class LiveCase:
    """One job, and what its diagnosis must say."""

    row: str
    """Line of the table."""
    layout: ParallelLayout
    fault: str = ""
    """As the trainer takes it, without the steps in which it holds; empty for a healthy job."""
    kind: str = NONE
    """Kind of the first finding."""
    rank: int = 0
    """The slow rank, or a member of the slow group."""
    axis: str = ""
    """Axis of the slow group."""
    trial: int = 0
    """Number of the run among those that are alike."""
    steps: int = STEPS

    @property
    def name(self) -> str:
        """Return the name of the run."""
        mesh = f"tp{self.layout.tp}-pp{self.layout.pp}-dp{self.layout.dp}"
        words = "-".join(self.row.replace(",", "").split())
        return f"{words}-{mesh}-rank{self.rank}-{self.trial}"

    @property
    def request(self) -> str:
        """Return the fault with its steps; the order of the blocks comes from the seed."""
        return f"{self.fault},start=1,window={WINDOW},seed={SEED + self.rank}"

    def settings(self) -> list[str]:
        """Return what the trainer's preset ``demo`` is changed in."""
        layout = self.layout
        # One block for each stage: all jobs have the same work a rank.
        changed = {
            "layout.tp": layout.tp,
            "layout.pp": layout.pp,
            "layout.dp": layout.dp,
            "model.layers": layout.pp,
            "train.steps": self.steps,
            "train.seed": SEED,
            "pace.layer_ms": LAYER_MS,
        }
        return [f"{name}={value}" for name, value in changed.items()]


def slow_rank(layout: ParallelLayout, rank: int, mode: str = "sleep") -> LiveCase:
    """Return a job whose rank takes 20 ms longer for each microbatch."""
    fault = f"slow_rank:rank={rank},mode={mode},delay_ms=20"
    kind = "straggler_rank"
    return LiveCase(row=f"slow rank, {mode}", layout=layout, fault=fault, kind=kind, rank=rank)


def slow_link(layout: ParallelLayout, axis: str, rank: int, delay_ms: int) -> LiveCase:
    """Return a job in which one group's transfers along an axis take longer."""
    fault = f"slow_link:rank={rank},axis={axis},delay_ms={delay_ms}"
    row, kind = f"slow {axis} group", "slow_link"
    return LiveCase(row=row, layout=layout, fault=fault, kind=kind, rank=rank, axis=axis)


def healthy(layout: ParallelLayout, trial: int) -> LiveCase:
    """Return a job without a fault."""
    return LiveCase(row="healthy, twice the same seed", layout=layout, trial=trial)


def cases() -> list[LiveCase]:
    """Return all jobs of the suite."""
    return [
        *(slow_rank(PIPELINE, rank) for rank in range(4)),
        *(slow_rank(TENSOR, rank) for rank in (1, 2)),
        *(slow_rank(PIPELINE, rank, "compute") for rank in (1, 2)),
        slow_rank(TENSOR, 3, "compute"),
        *(slow_link(PIPELINE, "dp", rank, 60) for rank in (0, 3)),
        slow_link(TENSOR, "dp", 1, 60),
        *(slow_link(TENSOR, "tp", rank, 5) for rank in (0, 3)),
        slow_link(PIPELINE, "pp", 0, 20),
        *(healthy(layout, trial) for layout in (PIPELINE, TENSOR) for trial in range(TRIALS)),
    ]

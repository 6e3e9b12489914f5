"""The live jobs: two or four ranks on this machine, one fault each, or several that come and go apart.

Most faults come in blocks of steps with and without. The seeds below are published:
they decide the weights, the data and the order of the blocks, so that everybody runs
the same jobs. What differs between runs is the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from pathlib import Path
from types import MappingProxyType

from meshscope.probe.schema.layout import ParallelLayout

SEED = 20_26_11
WINDOW = 3
"""Steps of a block with, or without, the fault."""


def steps_of_pairs(pairs: int) -> int:
    """Return the steps of a job: one to warm up, then pairs of blocks with and without the fault."""
    return 1 + 2 * WINDOW * pairs


STEPS = steps_of_pairs(6)
NONE = "none"


class Way(StrEnum):
    """How the truth of a job is known."""

    PAIRED = auto()
    """The fault comes and goes in blocks of steps; what it costs is their difference."""
    PLACED = auto()
    """The same, but what it costs depends on what else the cores do: only the cause and its
    place are compared."""
    AGAINST = auto()
    """It is there in all steps; what it costs is the difference to a second job, in which the
    work is the same and evenly spread."""
    ALWAYS = auto()
    """It is there in all steps; what must be said of it follows from what was asked for."""
    FATAL = auto()
    """It ends the job."""


@dataclass(frozen=True, kw_only=True)
class LiveCase:
    """One job, and what its diagnosis must say."""

    row: str
    """Line of the table."""
    layout: ParallelLayout
    faults: tuple[str, ...] = ()
    """As the trainer takes them; the first without the steps in which it holds, if these come
    in blocks; all of them without, in a job of several."""
    kinds: tuple[str, ...] = (NONE,)
    """Kinds of which the first finding may be."""
    even: tuple[str, ...] = ()
    """The faults of the second job."""
    place: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """What the finding must name: rank, stage, axis, and ``member``, a rank of the group or an
    end of the link; ``ranks`` exactly."""
    way: Way = Way.PAIRED
    settings: tuple[str, ...] = ()
    """What is changed besides."""
    pace_ms: float = 10.0
    """Pace of a block's forward; ranks that sleep share two cores without taking turns."""
    blocks: int = 2
    """Transformer blocks of the model."""
    steps: int = STEPS
    trial: int = 0
    """Number of the run among those that are alike."""
    part: int | None = None
    """Of a job of several faults the one that this case judges; each has an order of blocks of its own."""
    beside: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """Kind and place of the other faults of the job."""
    slow_pass: str = ""
    """The pass in which a rank of a job with torch's DDP is slow; "" is the reference trainer."""

    @property
    def name(self) -> str:
        """Return the name of the case."""
        at = "".join(f"-{key}{value}" for key, value in self.place.items() if key != "ranks")
        if self.part is not None and not at:
            # The job itself has the name without a place.
            at = f"-{self.kinds[0]}"
        return f"{self._job}{at}-{self.trial}"

    @property
    def run(self) -> str:
        """Return the name of its run, which all cases of a job of several faults share."""
        return self.name if self.part is None else f"{self._job}-{self.trial}"

    @property
    def _job(self) -> str:
        words = "-".join(self.row.replace(",", "").replace(".", "").split())
        return f"{words}-tp{self.layout.tp}-pp{self.layout.pp}-dp{self.layout.dp}"

    @property
    def requests(self) -> list[str]:
        """Return the faults with their steps; the order of the blocks comes from the seed."""
        if not self.faults:
            return []
        if self.part is not None:
            blocks = f"start=1,window={WINDOW}"
            return [
                f"{fault},seed={SEED + self.trial + number},{blocks}"
                for number, fault in enumerate(self.faults)
            ]
        first = f"{self.faults[0]},seed={SEED + self.trial}"
        if self.way in (Way.PAIRED, Way.PLACED):
            first += f",start=1,window={WINDOW}"
        return [first, *self.faults[1:]]

    def spread_evenly(self) -> LiveCase:
        """Return the second job."""
        return replace(self, row=f"{self.row}, evenly", faults=self.even)

    def trainer(self, out: Path) -> list[str]:
        """Return the module that trains, and its arguments; it writes its ground truth to ``out``."""
        if not self.slow_pass:
            where = ["--preset", "demo", "--out", str(out)]
            return ["meshscope.reference_trainer", *where, *self._arguments()]
        size = ["--steps", str(self.steps), "--pace-ms", str(self.pace_ms)]
        where = ["--out", str(out), "--fault", self.requests[0]]
        return ["tests.truth.live.replicated", *where, *size, self.slow_pass]

    def _arguments(self) -> list[str]:
        """Return what the trainer's preset ``demo`` is changed in."""
        axes = {f"layout.{axis}": getattr(self.layout, axis) for axis in ("tp", "pp", "dp")}
        axes |= {
            f"layout.{axis}": size
            for axis in ("cp", "ep")
            if (size := getattr(self.layout, axis)) > 1
        }
        changed = {
            **axes,
            "model.layers": self.blocks,
            "train.steps": self.steps,
            "train.seed": SEED,
            "pace.layer_ms": self.pace_ms,
        }
        settings = [*(f"{name}={value}" for name, value in changed.items()), *self.settings]
        return [
            *(word for setting in settings for word in ("--set", setting)),
            *(word for request in self.requests for word in ("--fault", request)),
        ]

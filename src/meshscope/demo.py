"""The main job from end to end: train, record, diagnose, and compare with the truth.

Eight processes train on this machine (tensor x pipeline x data = 2 x 2 x 2).
One rank, drawn at random, is slowed down in half of the steps. The trainer
writes which one, and when, to a file that the analysis never opens; only after
the diagnosis is printed is it compared with that file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from math import hypot, pi, sqrt
from pathlib import Path
from statistics import median

import typer

from meshscope.analyze import Diagnosis, diagnose, load_trace
from meshscope.analyze.output.text import to_text
from meshscope.analyze.wording.quantities import percent
from meshscope.probe.launching.launch import run
from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.message import message
from meshscope.probe.schema.terms import FindingKind

RANKS = 8
"""The least mesh with every axis: 2 x 2 x 2."""
STEPS = 25
"""Enough for an interval of a few per cent, in under two minutes."""
WINDOW = 4
"""Steps on and off in turn: short enough that several pairs fit, long enough to be seen."""
DELAY_MS = 100
"""For each pass: far above the noise of a shared machine."""
RUN_ID = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was really injected, and what it cost."""

    rank: int
    paired_ns: float
    """Median step time with the fault less without, over the paired blocks."""
    error_ns: float
    """Its standard error."""
    cost_frac: float
    """The cost averaged over all analysed steps, as a share of the mean step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Where the demo left its run, and how the diagnosis compares with the truth."""

    runs_dir: Path
    diagnosis: Diagnosis
    truth: Truth
    suspect: int | None
    """Rank of the first straggler finding."""
    cost_frac: float | None
    """What the diagnosis says that repairing it returns."""

    @property
    def relative_error(self) -> float | None:
        """Return how far the diagnosed cost is from the truth, as a share of the truth."""
        if self.cost_frac is None:
            return None
        return abs(self.cost_frac - self.truth.cost_frac) / self.truth.cost_frac


def run_demo(folder: Path | None = None) -> DemoResult:
    """Run the demo and print its report.

    Args:
        folder: Gets ``runs/`` and ``truth/``; a new temporary folder if not given.

    Raises:
        MeshscopeError: The training run failed.
    """
    base = folder or Path(tempfile.mkdtemp(prefix="meshscope-demo-"))
    runs_dir, truth_dir = base / "runs", base / "truth"
    if (runs_dir / RUN_ID).exists():
        raise ConfigError(
            message("refused.demo_ran"),
            where=str(runs_dir / RUN_ID),
            remedy=message("advice.other_folder"),
        )
    typer.echo(
        f"Training {RANKS} ranks (TP2 x PP2 x DP2, gloo) for {STEPS} steps; "
        "one of them is slowed down, and the analysis is not told which.",
        err=True,
    )
    # One thread per rank, which is what torchrun would set with a warning.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = run(_command(truth_dir), runs_dir, run_id=RUN_ID, environment=environment)
    if code != 0:
        raise MeshscopeError(
            message("refused.training_failed", exit_code=code),
            where=str(runs_dir / RUN_ID),
            remedy=message("advice.messages_above"),
        )
    result = diagnose(load_trace(runs_dir / RUN_ID))
    typer.echo(to_text(result))
    compared = _compare(runs_dir, result, read_truth(truth_dir, result))
    typer.echo(f"\n{comparison(compared)}")
    typer.echo(f"\nNext: meshscope dashboard {runs_dir}")
    return compared


def _command(truth_dir: Path) -> list[str]:
    fault = f"slow_rank:rank=random,mode=sleep,delay_ms={DELAY_MS},start=1,window={WINDOW}"
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc_per_node", str(RANKS), "-m", "meshscope.reference_trainer"),
        *("--preset", "demo", "--set", f"train.steps={STEPS}", "--fault", fault),
        *("--out", str(truth_dir)),
    ]


def read_truth(truth_dir: Path, result: Diagnosis) -> Truth:
    """Return the injected rank and its paired cost from the trainer's own log.

    Every block of steps with the fault has a block without it beside it, so the
    difference of the two medians is the cost per affected step, whatever else the
    machine did meanwhile.
    """
    records = [
        json.loads(line)
        for line in (truth_dir / "ground_truth.rank00000.jsonl").read_text("utf-8").splitlines()
    ]
    rank = next(record for record in records if record["record"] == "plan")["faults"][0]["rank"]
    steps = [record for record in records if record["record"] == "step" and record["step"] >= 1]
    length = {
        active: [_length(s) for s in steps if s["fault_active"] is active]
        for active in (True, False)
    }
    paired_ns = median(length[True]) - median(length[False])
    # Some steps are recorded with their length only: the diagnosis averages over the others.
    analysed = set(result.ledger["step"])
    affected = [step["fault_active"] for step in steps if step["step"] in analysed]
    return Truth(
        rank=rank,
        paired_ns=paired_ns,
        error_ns=hypot(*map(_error_of_median, length.values())),
        cost_frac=paired_ns * sum(affected) / len(affected) / result.step_time_ns,
    )


def _error_of_median(sample: list[int]) -> float:
    """Return the standard error of a sample's median, from its median deviation.

    For normal noise the median scatters by sqrt(pi / 2) times as much as the mean.
    """
    centre = median(sample)
    deviation = 1.4826 * median(abs(value - centre) for value in sample)
    return sqrt(pi / 2) * deviation / sqrt(len(sample))


def _length(step: dict[str, int]) -> int:
    return step["end_ns"] - step["start_ns"]


def _compare(runs_dir: Path, result: Diagnosis, truth: Truth) -> DemoResult:
    found = [finding for finding in result.findings if finding.kind is FindingKind.STRAGGLER_RANK]
    return DemoResult(
        runs_dir=runs_dir,
        diagnosis=result,
        truth=truth,
        suspect=found[0].where["rank"] if found else None,
        cost_frac=found[0].removal_gain_frac if found else None,
    )


def comparison(result: DemoResult) -> str:
    """Return the truth beside the diagnosis, in words."""
    truth = result.truth
    lines = [
        "Compared with the truth (read only now):",
        f"  injected:  rank {truth.rank}, +{truth.paired_ns / 1e6:.1f} ms (standard error "
        f"{truth.error_ns / 1e6:.1f}) per affected step by "
        f"paired A/B steps = {percent(truth.cost_frac)} of the mean step",
    ]
    cost_frac, off = result.cost_frac, result.relative_error
    if result.suspect is None or cost_frac is None or off is None:
        return "\n".join([*lines, "  diagnosed: no straggler. The diagnosis missed it."])
    verdict = "right rank" if result.suspect == truth.rank else "WRONG RANK"
    return "\n".join(
        [
            *lines,
            f"  diagnosed: rank {result.suspect}, repairing it returns {percent(cost_frac)} of the "
            f"mean step ({verdict}; cost off by {percent(off, 0)})",
        ]
    )

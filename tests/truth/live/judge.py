"""What the diagnosis says of a live job, against its paired steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.results import Diagnosis, Finding
from meshscope.analyze.trace import Trace

from ..matrix.judge import BY_DESIGN, SEEN_FROM
from .cases import NONE, LiveCase
from .job import run_job
from .paired import Step, paired_cost, steps_of

FAULTS = ("straggler_rank", "slow_link")
"""Kinds of findings that a job without a fault must not have."""


@dataclass(frozen=True, kw_only=True)
class LiveVerdict:
    """How one live job was diagnosed."""

    case: LiveCase
    wanted: str
    """Kind that the first finding must be of; ``none`` where the fault turned out to cost less
    than ``SEEN_FROM`` of the step."""
    found: str
    """Kind of the first finding that names a fault."""
    place: str
    """Its place, in words."""
    is_located: bool
    """Whether that is the right place."""
    true_frac: float | None
    """What the fault costs, share of the mean step; None for a healthy job."""
    error_frac: float
    """Standard error of that."""
    gain_frac: float | None
    """What the diagnosis says that repairing it returns."""
    false_suspects: int
    """Findings that call a healthy rank or group slow."""
    steps: list[Step]
    """The analysed steps."""

    @property
    def bar_error(self) -> float | None:
        """Return how far the diagnosed gain is from the true cost; all of it where none was told."""
        return None if self.true_frac is None else abs((self.gain_frac or 0.0) - self.true_frac)

    @property
    def is_hit(self) -> bool:
        """Return whether the first finding names the right cause at the right place."""
        return self.found == self.wanted and self.is_located


def judge(case: LiveCase, folder: Path) -> LiveVerdict:
    """Run a job, diagnose it, and compare.

    Raises:
        JobError: The training run did not end well.
    """
    run_dir, truth_dir = run_job(case, folder)
    trace = load_trace(run_dir)
    result = diagnose(trace)
    steps = steps_of(truth_dir, int(result.run["first_step"]), int(result.run["last_step"]))
    findings = _faults(case, result)
    first = findings[0] if findings else None
    right = [f for f in findings if f.kind.value == case.kind and _is_right(case, trace, f)]
    cost = paired_cost(steps) if case.kind != NONE else None
    share = sum(step.is_active for step in steps) / len(steps) / result.step_time_ns
    true_frac = None if cost is None else cost.cost_ns * share
    wanted = case.kind if (true_frac or 0.0) >= SEEN_FROM else NONE
    blamed = [f for f in findings if f.kind.value in FAULTS]
    return LiveVerdict(
        case=case,
        wanted=wanted,
        found=NONE if first is None else first.kind.value,
        place="" if first is None else _words(first),
        is_located=first in right or (first is None and wanted == NONE),
        true_frac=true_frac,
        error_frac=0.0 if cost is None else cost.error_ns * share,
        gain_frac=right[0].removal_gain_frac if right else None,
        false_suspects=len(blamed) - len(right),
        steps=steps,
    )


def _faults(case: LiveCase, result: Diagnosis) -> list[Finding]:
    """Return the findings that name a fault; of a healthy job only those that blame somebody.

    The trainer's last stage really has the loss and the head, and its host really shares
    two cores: what that costs is no false alarm.
    """
    found = [f for f in result.findings if f.kind.value not in BY_DESIGN]
    found = [f for f in found if (f.cost_frac or 0.0) >= SEEN_FROM]
    return [f for f in found if case.kind != NONE or f.kind.value in FAULTS]


def _is_right(case: LiveCase, trace: Trace, finding: Finding) -> bool:
    where = finding.where
    if case.kind == "straggler_rank":
        return where.get("rank") == case.rank
    if where.get("axis") != case.axis:
        return False
    if "link" in where:
        return str(case.rank) in where["link"].replace("<->", "->").split("->")
    groups = trace.frame("group")
    members = dict(zip(groups["group_id"].astype(str), groups["ranks"], strict=True))
    return case.rank in members.get(where.get("group_id", ""), ())


def _words(finding: Finding) -> str:
    shown = ("rank", "ranks", "stage", "group_id", "link", "host")
    return ", ".join(f"{name} {finding.where[name]}" for name in shown if name in finding.where)

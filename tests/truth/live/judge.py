"""What the diagnosis says of a live job, against its paired steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.truth.live.asked import reported_of
from tests.truth.live.cases import NONE, LiveCase, Way
from tests.truth.live.job import run_job
from tests.truth.live.paired import Difference, Step, difference, paired_cost, steps_of
from tests.truth.live.place import is_place, words
from tests.truth.matrix.judge import SEEN_FROM, tells_design

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.tables.results import Diagnosis, Finding
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.terms import Severity
from meshscope.reference_trainer.config.fault_plan import parse_fault, resolve

SUSPECTS = ("straggler_rank", "slow_link", "expert_imbalance")
"""Kinds of findings that blame a rank or a link."""


@dataclass(frozen=True, kw_only=True)
class LiveVerdict:
    """How one live job was diagnosed."""

    case: LiveCase
    wanted: str
    """Kinds that the first finding must be of; ``none`` where the fault turned out to cost less
    than ``SEEN_FROM`` of the step."""
    found: str
    """Kind of the first finding that names a fault."""
    place: str
    """Its place, in words."""
    is_located: bool
    """Whether that is the right cause at the right place."""
    true_frac: float | None
    """What the fault costs, share of the mean step; None where no steps were compared."""
    error_frac: float
    """Standard error of that."""
    gain_frac: float | None
    """What the diagnosis says that repairing it returns."""
    reported: str
    """What else was asked of the diagnosis, and what it said."""
    false_suspects: int
    """Findings that call a healthy rank or group slow."""
    steps: list[Step]
    """The analysed steps."""

    @property
    def bar_error(self) -> float | None:
        """Return how far the diagnosed gain is from the true cost; all of it where none was reported."""
        if self.true_frac is None or self.case.way is Way.PLACED:
            return None
        return abs((self.gain_frac or 0.0) - self.true_frac)

    @property
    def is_hit(self) -> bool:
        """Return whether the first finding names the right cause at the right place."""
        return self.is_located


def judge(case: LiveCase, folder: Path) -> LiveVerdict:
    """Run a job, diagnose it, and compare.

    Raises:
        JobError: The training run did not end as it should.
    """
    run_dir, truth_dir = run_job(case, folder)
    even = None
    if case.way is Way.AGAINST:
        _, even = run_job(case.spread_evenly(), folder)
    return judge_run(case, run_dir, truth_dir, even)


def judge_kept(case: LiveCase, folder: Path) -> LiveVerdict:
    """Diagnose a job that was run before into the same folder, and compare."""
    runs, truth = folder / "runs", folder / "truth"
    even = truth / case.spread_evenly().name if case.way is Way.AGAINST else None
    return judge_run(case, runs / case.run, truth / case.run, even)


def judge_run(
    case: LiveCase, run_dir: Path, truth_dir: Path, even_truth_dir: Path | None = None
) -> LiveVerdict:
    """Diagnose a job that was run, and compare.

    Args:
        case: What was run.
        run_dir: Its capture.
        truth_dir: Its ground truth.
        even_truth_dir: The ground truth of the second job, where there is one.
    """
    trace = load_trace(run_dir)
    result = diagnose(trace)
    steps = _steps(case, result, truth_dir)
    cost = _cost(case, steps, _steps(case, result, even_truth_dir) if even_truth_dir else [])
    share = sum(step.is_active for step in steps) / max(len(steps), 1) / result.step_time_ns
    true_frac = None if cost is None else cost.cost_ns * share
    is_cheap = true_frac is not None and true_frac < SEEN_FROM
    kinds = (NONE,) if is_cheap else case.kinds
    findings = [f for f in _faults(case, result) if not _is_of_another_fault(case, trace, f)]
    right = [f for f in findings if f.kind.value in case.kinds and is_place(case.place, trace, f)]
    first = _first(findings, right)
    reported, is_reported = reported_of(case, trace, result)
    blamed = [f for f in findings if f.kind.value in SUSPECTS]
    is_right = first in right if kinds != (NONE,) else first is None or first in right
    return LiveVerdict(
        case=case,
        wanted=" or ".join(kinds),
        found=NONE if first is None else first.kind.value,
        place="" if first is None else words(first),
        is_located=is_right and is_reported,
        true_frac=true_frac,
        error_frac=0.0 if cost is None else cost.error_ns * share,
        gain_frac=right[0].removal_gain_frac if right else None,
        reported=reported,
        false_suspects=len([f for f in blamed if f not in right]),
        steps=steps,
    )


def _steps(case: LiveCase, result: Diagnosis, truth_dir: Path) -> list[Step]:
    """Return the analysed steps; none where the job did not come to their end."""
    if case.way is Way.FATAL:
        return []
    first, last = int(result.run["first_step"]), int(result.run["last_step"])
    if case.part is None:
        return steps_of(truth_dir, first, last)
    faults = [
        resolve(spec, case.layout, spec.seed or 0) for spec in map(parse_fault, case.requests)
    ]
    others = [fault.active for fault in faults[: case.part] + faults[case.part + 1 :]]
    return steps_of(truth_dir, first, last, faults[case.part].active, others)


def _cost(case: LiveCase, steps: list[Step], even: list[Step]) -> Difference | None:
    """Return what the fault costs an affected step, None where no steps are compared."""
    if case.way is Way.AGAINST:
        return difference(steps, even)
    is_paired = case.way in (Way.PAIRED, Way.PLACED) and bool(case.faults)
    return paired_cost(steps) if is_paired else None


def _is_of_another_fault(case: LiveCase, trace: Trace, finding: Finding) -> bool:
    """Return whether a finding names one of the other faults of the job."""
    return any(
        finding.kind == kind and is_place(place, trace, finding) for kind, place in case.beside
    )


def _first(findings: list[Finding], right: list[Finding]) -> Finding | None:
    """Return the first finding; one without a cost, which has no order, if it is the right one."""
    if right and right[0].cost_frac is None:
        return right[0]
    return findings[0] if findings else None


def _faults(case: LiveCase, result: Diagnosis) -> list[Finding]:
    """Return the findings that name a fault; of a healthy job only those that blame somebody.

    The trainer's last stage really has the loss and the head, and its host really shares
    two cores: what that costs is no false alarm.
    """
    wanted = set(case.kinds)
    found = [f for f in result.findings if f.kind.value in wanted or not tells_design(f)]
    if case.way is Way.FATAL:
        return [f for f in found if f.severity is Severity.CRITICAL and f.cost_frac is None]
    found = [f for f in found if (f.cost_frac or 0.0) >= SEEN_FROM or f.kind.value in wanted]
    return [f for f in found if case.kinds != (NONE,) or f.kind.value in SUSPECTS]

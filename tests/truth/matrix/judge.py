"""What a diagnosis says of a case, against the truth of its paired jobs."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.truth.matrix.cases import BUBBLE, NONE, Case, kind_of
from tests.truth.matrix.pairs import true_bubble, true_gains, true_shares
from tests.truth.matrix.places import SLOW_RANKS, is_place

from meshscope.analyze.align.clocks.alignment import align
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.ordered import is_by_design
from meshscope.analyze.synthetic import Fault, FaultKind, generate
from meshscope.analyze.tables.results import Cause, Diagnosis, Finding

SEEN_FROM = 0.01
"""Share of the step from which a fault must be found."""
ALL_FROM = 0.03
"""Share of the step from which every fault of a job must be found, not the costliest alone."""
TIE = 0.01
"""Faults that cost the same within this share of the step may come in any order."""
BUBBLE_FROM = 0.06
"""Share of the step from which the waiting of the schedule must be reported."""
BY_DESIGN = (
    BUBBLE,
    "exposed_communication",
    "launch_bound",
    "missing_data",
    "clock_skew",
    "jitter",
)
"""Kinds of findings that are no fault of the job."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one case was diagnosed."""

    case: Case
    true_gain: float
    """What repairing the costliest fault alone returns, as a share of the step."""
    wanted: str
    """Its kind; ``none`` where no fault costs ``SEEN_FROM`` of the step."""
    found: str
    """Kind of the first finding that names a fault."""
    is_located: bool
    """Whether that finding names the right place."""
    bar_error: float | None
    """Error of the removal gain of that fault's cause, share of the step; None without one."""
    interval: tuple[float, float] | None
    """What the diagnosis says that removal gain lies between; None where it says no error."""
    share_error: float | None
    """Most that the share of one of several faults is wrong."""
    sum_error: float | None
    """Error of the sum of these shares, against what the faults cost together."""
    skew_change: float | None
    """Most that a bar, or a removal gain, differs from the same job with right clocks."""
    missed: tuple[str, ...]
    """Faults that cost ``ALL_FROM`` of the step and are no finding."""
    false_suspects: int
    """Ranks called stragglers that are not slow, or only by the clock of their devices."""


def judge(case: Case) -> Verdict:
    """Diagnose a case and compare."""
    trace, truth = generate(case.job)
    result = diagnose(align(trace))
    gains = true_gains(case.job, truth)
    findings = _faults(result)
    first = findings[0] if findings else None
    shares = true_shares(case.job, truth) if len(gains) > 1 else {}
    fault = _meant(case, {own: max(gains[own], shares.get(own, 0.0)) for own in gains}, first)
    gain = 0.0 if fault is None else gains[fault]
    cost = 0.0 if fault is None else max(gain, shares.get(fault, 0.0))
    wanted = kind_of(fault) if fault is not None and cost >= SEEN_FROM else NONE
    found = NONE if first is None else _merged(first.kind.value)
    bar_error = None if fault is None else _bar_error(case, result, fault, gain)
    if case.is_bubble:
        gain, reported = true_bubble(case.job, truth), _reported_bubble(result)
        wanted = BUBBLE if gain >= BUBBLE_FROM else NONE
        found = BUBBLE if found == NONE and reported is not None else found
        bar_error = abs((reported or 0.0) - gain) if wanted == BUBBLE else None
    right = first is not None and fault is not None and _names(case, fault, first)
    return Verdict(
        case=case,
        true_gain=gain,
        wanted=wanted,
        found=found,
        is_located=right or wanted in (NONE, BUBBLE),
        bar_error=bar_error,
        interval=None if fault is None else _interval(case, result, fault),
        share_error=_share_error(case, result, shares),
        sum_error=_sum_error(case, result, shares),
        skew_change=_skew_change(case, result),
        missed=tuple(
            own.text()
            for own, share in gains.items()
            if share >= ALL_FROM and not any(_names(case, own, finding) for finding in findings)
        ),
        false_suspects=_false_suspects(case, result),
    )


def _faults(result: Diagnosis) -> list[Finding]:
    """Return the findings that name a fault which costs enough to be looked at."""
    found = [f for f in result.findings if not tells_design(f)]
    return [f for f in found if f.cost_frac and f.cost_frac >= SEEN_FROM]


def tells_design(finding: Finding) -> bool:
    """Return whether a finding is about the design of the job, or how its machines are everywhere."""
    return finding.kind.value in BY_DESIGN or is_by_design(finding)


def _meant(case: Case, costs: Mapping[Fault, float], first: Finding | None) -> Fault | None:
    """Return the costliest fault, or one that costs as much if the first finding names it."""
    if not costs:
        return None
    most = max(costs.values())
    equal = [fault for fault, cost in costs.items() if cost >= most - TIE]
    named = [fault for fault in equal if first is not None and _names(case, fault, first)]
    return named[0] if named else max(costs, key=lambda fault: costs[fault])


def _names(case: Case, fault: Fault, finding: Finding) -> bool:
    kind = _merged(finding.kind.value)
    return kind == kind_of(fault) and is_place(case.job, fault, finding.where)


def _merged(kind: str) -> str:
    return "stage_imbalance" if kind == "embedding_imbalance" else kind


def _reported_bubble(result: Diagnosis) -> float | None:
    """Return what the schedule is said to cost, None if nothing is said."""
    return next((f.cost_frac for f in result.findings if f.kind.value == BUBBLE), None)


def _false_suspects(case: Case, result: Diagnosis) -> int:
    slow = {fault.rank for fault in case.job.faults if fault.kind in SLOW_RANKS}
    blamed: set[int] = set()
    for finding in result.findings:
        if finding.kind == "straggler_rank":
            blamed.update(finding.where.get("ranks") or [finding.where["rank"]])
    return len(blamed - slow)


def _of_fault(case: Case, fault: Fault, cause: Cause) -> bool:
    if cause.kind != kind_of(fault):
        return False
    placed = cause.kind in ("straggler_rank", "clock_throttle", "stage_imbalance", "slow_link")
    return not placed or is_place(case.job, fault, cause.where)


def _bar_error(case: Case, result: Diagnosis, fault: Fault, gain: float) -> float | None:
    """Return how far the removal gain of the fault's causes is from the true one."""
    if not result.causes:
        return None
    own = [cause for cause in result.causes if _of_fault(case, fault, cause)]
    return abs(sum(cause.removal_gain_frac for cause in own) - gain)


def _interval(case: Case, result: Diagnosis, fault: Fault) -> tuple[float, float] | None:
    """Return the interval of the removal gain of a fault that is one cause."""
    own = [cause for cause in result.causes if _of_fault(case, fault, cause)]
    return own[0].removal_gain_interval if len(own) == 1 else None


def _share_error(case: Case, result: Diagnosis, shares: Mapping[Fault, float]) -> float | None:
    errors = [
        abs(sum(c.share_frac for c in result.causes if _of_fault(case, fault, c)) - share)
        for fault, share in shares.items()
    ]
    return max(errors) if errors and result.causes else None


def _sum_error(case: Case, result: Diagnosis, shares: Mapping[Fault, float]) -> float | None:
    if not shares or not result.causes:
        return None
    own = [c for c in result.causes if any(_of_fault(case, fault, c) for fault in shares)]
    return abs(sum(cause.share_frac for cause in own) - sum(shares.values()))


def _skew_change(case: Case, result: Diagnosis) -> float | None:
    skews = [fault for fault in case.job.faults if fault.kind is FaultKind.CLOCK_SKEW]
    if not skews:
        return None
    right = diagnose(align(generate(case.job.without(*skews))[0]))
    one, other = _bars(result), _bars(right)
    return max(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in one.keys() | other.keys())


def _bars(result: Diagnosis) -> dict[str, float]:
    """Return all bars of the waterfall, and the removal gain of every cause."""
    bars = {bar.name: bar.frac for bar in result.waterfall}
    gains = {f"{c.kind} {sorted(c.where.items())}": c.removal_gain_frac for c in result.causes}
    return bars | gains

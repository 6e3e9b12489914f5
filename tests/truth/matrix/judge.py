"""What a diagnosis says of a case, against the truth of its paired jobs."""

from dataclasses import asdict, dataclass, replace

from meshscope.analyze.alignment import align
from meshscope.analyze.diagnose import diagnose
from meshscope.analyze.results import Cause, Diagnosis
from meshscope.analyze.synthetic import Fault, FaultKind, FaultTruth, Truth, generate, truth_of

from .cases import NONE, Case, kind_of

SEEN_FROM = 0.01
"""Share of the step from which a fault must be found."""
BY_DESIGN = (
    "pipeline_bubble",
    "exposed_communication",
    "launch_bound",
    "missing_data",
    "clock_skew",
)
"""Kinds of findings that are no fault of the job."""
STAGE_FAULTS = (FaultKind.SLOW_STAGE, FaultKind.HEAVY_HEAD, FaultKind.HEAVY_EMBEDDING)
PASS_COSTS = ("layer_forward_ns", "layer_backward_input_ns", "layer_backward_weight_ns")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one case was diagnosed."""

    case: Case
    true_gain: float
    """What repairing the costliest fault returns, as a share of the step."""
    wanted: str
    """Its kind; ``none`` where no fault costs ``SEEN_FROM`` of the step."""
    found: str
    """Kind of the first finding that names a fault."""
    is_located: bool
    """Whether that finding names the right place."""
    bar_error: float | None
    """Error of the removal gain of that fault's cause, share of the step; None without one."""
    false_suspects: int
    """Ranks called stragglers that are healthy."""


def judge(case: Case) -> Verdict:
    """Diagnose a case and compare."""
    trace, truth = generate(case.job)
    result = diagnose(align(trace))
    fault, gain = _costliest(case, truth)
    wanted = NONE if fault is None or gain < SEEN_FROM else kind_of(fault)
    findings = [f for f in result.findings if f.kind.value not in BY_DESIGN and f.cost_frac]
    findings = [f for f in findings if f.cost_frac >= SEEN_FROM]
    first = findings[0] if findings else None
    slow = {rank for fault in case.job.faults for rank in _slow_ranks(case, fault)}
    blamed = {rank for f in result.findings if f.kind == "straggler_rank" for rank in _ranks(f)}
    return Verdict(
        case=case,
        true_gain=gain,
        wanted=wanted,
        found=NONE if first is None else _merged(first.kind.value),
        is_located=wanted == NONE or (first is not None and _is_right(case, fault, first.where)),
        bar_error=None if fault is None else _bar_error(case, result, fault, gain),
        false_suspects=len(blamed - slow),
    )


def _costliest(case: Case, truth: Truth) -> tuple[Fault | None, float]:
    """Return the fault that repairing alone returns most, and that share of the step."""
    gains = {
        one.fault: _true_gain(case, truth, one)
        for one in truth.faults
        if kind_of(one.fault) != NONE
    }
    if not gains:
        return None, 0.0
    worst = max(gains, key=lambda fault: gains[fault])
    return worst, gains[worst] / truth.step_time_ns


def _true_gain(case: Case, truth: Truth, one: FaultTruth) -> float:
    """Return what the step gets shorter without a fault, by simulating that job.

    Work does not vanish from a heavy stage, it moves: the job to compare with has
    the same work on all its stages.
    """
    if one.fault.kind not in STAGE_FAULTS:
        return one.removal_gain_ns
    job, fault = case.job, one.fault
    layers = 2 * job.stages
    costs = asdict(job.costs)
    if fault.kind is FaultKind.SLOW_STAGE:
        mean = 1.0 + (fault.factor - 1.0) / job.stages
        equal = {name: round(ns * mean) for name, ns in costs.items() if name in PASS_COSTS}
    else:
        # Each pass of the stage takes so much more; an unsplit backward pass counts as two.
        more = fault.extra_ms * 1e6 / layers
        equal = {name: round(costs[name] + more) for name in PASS_COSTS}
    others = tuple(other for other in job.faults if other is not fault)
    balanced = replace(job, costs=replace(job.costs, **equal), faults=others)
    return truth.step_time_ns - truth_of(balanced).step_time_ns


def _merged(kind: str) -> str:
    return "stage_imbalance" if kind == "embedding_imbalance" else kind


def _slow_ranks(case: Case, fault: Fault) -> set[int]:
    if fault.kind not in (FaultKind.SLOW_RANK, FaultKind.CLOCK_DROP) or fault.rank is None:
        return set()
    return {fault.rank}


def _ranks(finding) -> list[int]:
    where = finding.where
    return where.get("ranks") or [where["rank"]]


def _is_right(case: Case, fault: Fault, where) -> bool:
    """Return whether a place is that of the fault."""
    job = case.job
    if fault.kind in (FaultKind.SLOW_RANK, FaultKind.CLOCK_DROP):
        return where.get("rank") == fault.rank
    if fault.kind is FaultKind.SLOW_STAGE:
        return where.get("stage") == fault.stage
    if fault.kind in (FaultKind.HEAVY_HEAD, FaultKind.HEAVY_EMBEDDING):
        return where.get("stage") == (job.stages - 1 if fault.kind is FaultKind.HEAVY_HEAD else 0)
    if fault.kind is FaultKind.SLOW_LINK and fault.peer is not None:
        ends = (fault.rank, fault.peer)
        return where.get("link") == f"{min(ends)}<->{max(ends)}"
    if fault.kind is FaultKind.SLOW_LINK:
        return where.get("axis") == fault.axis and _in_group(case, fault, where)
    return where.get("rank", fault.rank) == fault.rank


def _in_group(case: Case, fault: Fault, where) -> bool:
    groups = generate(case.job)[0].frame("group")
    members = dict(zip(groups["group_id"].astype(str), groups["ranks"], strict=True))
    return fault.rank in members.get(where.get("group_id"), ())


def _bar_error(case: Case, result: Diagnosis, fault: Fault, gain: float) -> float | None:
    """Return how far the removal gain of the fault's causes is from the true one."""
    kind = kind_of(fault)
    own = [c for c in result.causes if c.kind == kind and _is_place(case, fault, c)]
    if not result.causes:
        return None
    return abs(sum(c.removal_gain_frac for c in own) - gain)


def _is_place(case: Case, fault: Fault, cause: Cause) -> bool:
    if kind_of(fault) in ("straggler_rank", "stage_imbalance", "slow_link"):
        return _is_right(case, fault, cause.where)
    return True

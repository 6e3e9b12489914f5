"""What faults cost, by simulating the job without them."""

from dataclasses import asdict, replace
from itertools import permutations

from tests.truth.matrix.cases import NONE, kind_of

from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, Truth, make_simulation

_OF_ALL_PASSES = (FaultKind.HEAVY_HEAD, FaultKind.HEAVY_EMBEDDING)
_PASS_COSTS = ("layer_forward_ns", "layer_backward_input_ns", "layer_backward_weight_ns")


def true_gains(job: SyntheticJob, truth: Truth) -> dict[Fault, float]:
    """Return what the step gets shorter without each fault, as a share of it."""
    return {
        one.fault: 1.0 - repaired_ns(job, (one.fault,)) / truth.step_time_ns
        for one in truth.faults
        if kind_of(one.fault) != NONE
    }


def true_shares(job: SyntheticJob, truth: Truth) -> dict[Fault, float]:
    """Return the Shapley share of each fault, from simulations of every set of them.

    The definition itself, one order of repairs after the other: the shares sum to what the
    faults cost together.
    """
    faults = tuple(fault for fault in job.faults if kind_of(fault) != NONE)
    known: dict[frozenset[Fault], float] = {}

    def step_ns(repaired: frozenset[Fault]) -> float:
        if repaired not in known:
            known[repaired] = repaired_ns(job, tuple(f for f in faults if f in repaired))
        return known[repaired]

    total = dict.fromkeys(faults, 0.0)
    orders = list(permutations(faults))
    for order in orders:
        for place, fault in enumerate(order):
            before, after = frozenset(order[:place]), frozenset(order[: place + 1])
            total[fault] += step_ns(before) - step_ns(after)
    return {fault: ns / len(orders) / truth.step_time_ns for fault, ns in total.items()}


def repaired_ns(job: SyntheticJob, faults: tuple[Fault, ...]) -> float:
    """Return the step time without some faults.

    Work does not vanish from a heavy stage, it moves: the job to compare with has
    the same work on all its stages.
    """
    if not faults:
        return _step_time_ns(job)
    costs = asdict(job.costs)
    for fault in faults:
        if fault.kind is FaultKind.SLOW_STAGE:
            mean = 1.0 + ((fault.factor or 1.0) - 1.0) / job.stages
            costs |= {name: round(costs[name] * mean) for name in _PASS_COSTS}
        elif fault.kind in _OF_ALL_PASSES:
            # Each pass of the stage takes so much more; an unsplit backward pass counts as two.
            more = (fault.extra_ms or 0.0) * 1e6 / (2 * job.stages)
            costs |= {name: round(costs[name] + more) for name in _PASS_COSTS}
    return _step_time_ns(replace(job.without(*faults), costs=replace(job.costs, **costs)))


def true_bubble(job: SyntheticJob, truth: Truth) -> float:
    """Return the waiting that the schedule imposes, as a share of the step.

    What the ranks of the same job without jitter and with immediate transfers do not work.
    """
    free = dict.fromkeys(("tp_ns", "cp_ns", "ep_ns", "pp_ns", "dp_ns"), 0)
    ideal = replace(job, costs=replace(job.costs, **free), jitter_cv=0.0, wire_cv=0.0, faults=())
    costs = job.costs
    layer_ns = sum(getattr(costs, name) for name in _PASS_COSTS)
    busy_ns = 2 * job.layout.vpp * job.microbatches * layer_ns + costs.optimizer_ns
    return (_step_time_ns(ideal) - busy_ns) / truth.step_time_ns


def _step_time_ns(job: SyntheticJob) -> float:
    """Return the mean over the ranks of when the last step is over, by the number of steps."""
    *_, last = make_simulation(job).steps()
    return float(last.end.mean()) / job.steps

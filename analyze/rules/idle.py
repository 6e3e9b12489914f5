"""Devices that idle without waiting for a peer: launch-bound, or the host did something else.

Only the time in which the host was launching is launch-bound, as in ``meshscope kernels``;
CUDA graphs do not help a device whose host waits for input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from meshscope.probe.schema.terms import FindingKind, KernelCategory

from ..account import Account
from ..capture.trace import Trace
from ..deep.steps import listed_steps
from ..kernels.coverage import common_kernel_steps, has_kernels, steps_with_kernels
from ..kernels.host_waits import host_waits
from ..kernels.idle import DeviceIdle, device_idle
from ..results import Finding
from ..words import counted
from .grading import severity
from .host import MIN_STALL

MIN_IDLE = 0.25
"""Share of the step from which an idle device is worth a finding."""
_COLUMNS = ["step", "category", "start_ns", "dur_ns", "launch_ns"]
_NOTHING = "no kernel, copy or collective was on the device in that time"


def idle_devices(account: Account) -> Iterator[Finding]:
    """A device that idles most of the time although nobody makes it wait.

    A trace without a compute kernel (of communication only, say) tells nothing of idling.
    """
    trace = account.trace
    if not trace.row_count("kernel"):
        return
    common = common_kernel_steps(trace, account.windows.ranks)
    by_step = account.ledger.by_step
    traced = by_step[has_kernels(trace, by_step["step"], common)]
    if traced.empty:
        return
    cost = float(traced["unattributed"].sum() / traced["step_ns"].sum())
    if cost < MIN_IDLE or not any(_has_compute(trace, rank) for rank in trace.ranks):
        return
    where = () if common is None else (f"seen in {listed_steps(common.tolist())}, traced in depth",)
    idle = _idle_by_rank(trace, account.windows.ranks.tolist())
    bound = min(cost, _share(idle, "launch_bound_ns") or 0.0)
    if bound >= MIN_STALL:
        yield _launch_bound(idle, bound, where)
    if cost - bound >= MIN_STALL:
        yield _not_fed(idle, cost, bound, (*_waits(trace, float(idle["time_ns"].sum())), *where))


def _launch_bound(idle: pd.DataFrame, bound: float, where: tuple[str, ...]) -> Finding:
    share = (idle["launch_bound_ns"] / idle["span_ns"]).sort_values()
    ends = dict.fromkeys((share.index[0], share.index[-1]))
    by_rank = " to ".join(f"{share[rank]:.1%} (rank {rank})" for rank in ends)
    return Finding(
        kind=FindingKind.LAUNCH_BOUND,
        severity=severity(bound),
        where={},
        claim=f"The devices are idle {bound:.0%} of the step while their hosts are launching work",
        cost_frac=bound,
        removal_gain_frac=None,
        confidence=0.6,
        evidence=(
            f"{_NOTHING}, none was waiting there, and a thread of the host was in an operator or call: "
            f"{by_rank} of what was recorded of the device (meshscope kernels)",
            *where,
        ),
        remedy="Fuse or capture small kernels (CUDA graphs, torch.compile), or give each step more work",
    )


def _not_fed(idle: pd.DataFrame, cost: float, bound: float, where: tuple[str, ...]) -> Finding:
    """Return the idle time that is not launch-bound, or of which that is not known."""
    rest = cost - bound
    starved = _share(idle, "starved_ns")
    is_told = starved is not None and _share(idle, "launch_bound_ns") is not None
    if is_told and starved is not None:
        held = max(0.0, min(rest, starved - bound))
        why = (
            f"{held:.0%} of the step nothing was launched and the host was in no operator or call; "
            "the rest, what was launched had not started yet, or the step was at its ends"
        )
    else:
        why = "why is not known: the capture does not tell when the work was launched, or what the host did"
    return Finding(
        kind=FindingKind.HOST_STALL,
        severity=severity(rest),
        where={},
        claim=f"The devices are idle {rest:.0%} of the step without waiting for a peer"
        + (", and not for launches" if is_told else ""),
        cost_frac=rest,
        removal_gain_frac=None,
        confidence=0.6,
        evidence=(_NOTHING, why, *where),
        remedy="See what the host does in the gaps: input, locks, synchronising calls, Python between "
        "operators (meshscope kernels tells launches and waits from the rest)",
    )


def _waits(trace: Trace, time_ns: float) -> Iterator[str]:
    """Yield what calls that wait for the device cost, where that is worth a sentence."""
    waits = host_waits(trace)
    share = float(waits["starved_ns"].sum()) / time_ns if time_ns else 0.0
    if share < MIN_STALL:
        return
    most = waits.iloc[0]
    inside = f" inside {most['operator']}" if most["operator"] else ""
    yield (
        f"calls that wait for the device starve it for up to {share:.1%} of the step, most of it "
        f"{most['call']}{inside}: {most['starved_ns'] / time_ns:.1%} in {counted(int(most['count']), 'call')}"
    )


def _idle_by_rank(trace: Trace, ranks: Sequence[int]) -> pd.DataFrame:
    """Return the device idle times by rank, NaN where they are not known.

    ``time_ns`` is that of its steps; of the device alone where there are none, or it went on.
    """
    rows = {}
    for rank in ranks:
        found = device_idle(trace, rank, trace.rank_frame("kernel", rank, _COLUMNS))
        if found.span_ns:
            steps_ns = int(steps_with_kernels(trace, rank)["dur_ns"].sum())
            rows[rank] = (*found, max(found.span_ns, steps_ns))
    table = pd.DataFrame.from_dict(rows, orient="index", columns=[*DeviceIdle._fields, "time_ns"])
    return table.astype("float64")


def _share(idle: pd.DataFrame, name: str) -> float | None:
    """Return a time as a share of the steps, None where a rank does not tell it."""
    if idle.empty or idle[name].isna().any():
        return None
    return float(idle[name].sum() / idle["time_ns"].sum())


def _has_compute(trace: Trace, rank: int) -> bool:
    category = trace.rank_frame("kernel", rank, ["category"])["category"]
    return bool((category == KernelCategory.COMPUTE).any())

"""Devices that run at a lower clock than those of their peers: heat, power, or a setting.

Arithmetic takes as many cycles at any clock, so of the time that a device computes at the
clock f it would have saved the part ``1 - f / f_peers`` at that of its peers. Time that memory
bandwidth bounds does not depend on the clock: that of samples that say so, and the optimizer.

What a clock costs is taken out before ranks are compared, so that a rank is not called slow for
it as well. Where a rank would then be faster than its peers by more than noise, its clock cost
less than that, and so much is given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from msgspec.structs import replace

from ...account.devices.steps import DeviceSteps
from ...account.ledger.build import Ledger
from ...tables.arrays import FloatArray, IntArray
from ...tables.classes import class_code
from ...tables.results import Where
from ..replay.effect_folding import EdgeEffect
from ..replay.program import Program
from .effects import Work, excess_by_rank, peer_centre
from .time_inside import on_edges, time_inside

CLOCKED_CLASSES = ("forward", "backward", "recompute", "compute")
"""Classes whose time depends on the SM clock; the optimizer's depends on memory bandwidth."""
MAX_RATIO = 0.98
"""Clock over that of its peers from which a step of a device counts as slow."""
MIN_LOST = 0.005
"""Share of its time that a device must lose by its clock, averaged over the steps."""
MIN_KNOWN = 0.5
"""Share of the steps whose clock must be known; the others are taken for the mean of these."""
MAX_PLACES = 4
"""As many hosts are causes of their own; further ones are one cause together."""
MAX_Z = -2.0
"""A rank without its clock's cost is faster than its peers by more than noise from this z down."""


class SlowClock(NamedTuple):
    """Ranks whose devices ran at a lower clock than their peers, of one host."""

    ranks: tuple[int, ...]
    where: Where
    effect: EdgeEffect
    """What that costs on the work edges."""


def lost_to_clocks(devices: DeviceSteps) -> FloatArray:
    """Return the share of its computing that each rank and step loses against its peers' clock.

    0 where the clock is not lower, and of ranks that lose next to nothing, or of which too
    little is known.
    """
    frame = devices.frame
    ratio = frame["clock_hz"] / frame["peer_hz"]
    lost = (1.0 - ratio).where(ratio <= MAX_RATIO, 0.0) * (1.0 - frame["bound_frac"].fillna(0.0))
    lost = lost.where(ratio.notna())
    by_rank = lost.groupby(frame["rank"])
    mean = by_rank.transform("mean")
    enough = (ratio.notna().groupby(frame["rank"]).transform("mean") >= MIN_KNOWN) & (
        mean >= MIN_LOST
    )
    return lost.fillna(mean).where(enough, 0.0).to_numpy(np.float64)


def without_slow_clocks(
    work: Work,
    program: Program,
    ledger: Ledger,
    devices: DeviceSteps,
) -> tuple[Work, list[SlowClock]]:
    """Return the work as it would be at the clocks of the peers, and what each host loses.

    Args:
        work: The recorded work.
        program: The replay graph.
        ledger: Its segments say what was computing.
        devices: The clocks.
    """
    lost = lost_to_clocks(devices)
    if not lost.any():
        return work, []
    edge, cost = _cost_of_edges(program, ledger, devices.frame, lost)
    rank = program.marks["rank"].to_numpy()[program.work_edges[edge]]
    kept = _kept(_less(work, edge, cost), rank, work.cell[edge])
    cost *= np.array([kept.get(own, 1.0) for own in rank.tolist()])
    touched = cost > 0
    edge, rank, cost = edge[touched], rank[touched], cost[touched]
    found = [
        SlowClock(tuple(ranks), where, EdgeEffect(edge[own].astype(np.int32), cost[own]))
        for ranks, where in _places(rank, cost, devices.hosts)
        for own in (np.isin(rank, ranks),)
    ]
    return _less(work, edge, cost), found


def of_single_ranks(clocks: Iterable[SlowClock], program: Program) -> list[SlowClock]:
    """Return the same with every rank by itself."""
    found = []
    of_edge = program.marks["rank"].to_numpy()[program.work_edges]
    for clock in clocks:
        edge, cost = clock.effect
        for rank in clock.ranks:
            own = of_edge[edge] == rank
            found.append(SlowClock((rank,), {"rank": rank}, EdgeEffect(edge[own], cost[own])))
    return found


def clock_cells(work: Work, clock: SlowClock) -> FloatArray:
    """Return by which share each cell's rank works longer in its step because of its clock."""
    own = np.isin(work.cells["rank"].to_numpy(), clock.ranks)
    cells = work.cells[["rank", "step", "work_ns", "clock_ns"]]
    sums = cells.groupby(["rank", "step"])[["work_ns", "clock_ns"]].transform("sum")
    with np.errstate(invalid="ignore", divide="ignore"):
        longer = (sums["clock_ns"] / sums["work_ns"]).to_numpy(np.float64)
    return np.where(own & np.isfinite(longer), longer, 0.0)


def _cost_of_edges(
    program: Program, ledger: Ledger, frame: pd.DataFrame, lost: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Return the work edges of ranks with a slow clock, and what it costs on each, ns."""
    marks, edges = program.marks, program.work_edges
    slow = frame["rank"].to_numpy()[lost > 0]
    edge = np.flatnonzero(np.isin(marks["rank"].to_numpy()[edges], slow))
    rank, step = (marks[name].to_numpy()[edges[edge]] for name in ("rank", "step"))
    row = pd.MultiIndex.from_frame(frame[["rank", "step"]]).get_indexer(
        pd.MultiIndex.from_arrays([rank.astype(np.int64), step.astype(np.int64)])
    )
    inside = time_inside(marks, edges[edge], ledger, list(map(class_code, CLOCKED_CLASSES)))
    return edge, inside * np.where(row >= 0, lost[row], 0.0)


def _less(work: Work, edge: IntArray, cost: FloatArray) -> Work:
    """Return work without a cost of some edges."""
    of_cell = np.bincount(work.cell[edge], weights=cost, minlength=len(work.cells))
    cells = work.cells.assign(
        work_ns=work.cells["work_ns"] - of_cell,
        compute_ns=work.cells["compute_ns"] - of_cell,
        clock_ns=of_cell,
    )
    left = on_edges(work.busy_edge, work.busy_ns, len(work.cell))
    left[edge] -= cost
    busy = np.flatnonzero(left)
    return replace(work, cells=cells, busy_edge=busy.astype(np.int32), busy_ns=left[busy])


def _kept(work: Work, rank: IntArray, cell: IntArray) -> dict[int, float]:
    """Return which part of its clock's cost each rank's peers bear out, where not all of it.

    Args:
        work: Without the whole cost.
        rank: Ranks with a slow clock.
        cell: Their cells.
    """
    table = excess_by_rank(work, peer_centre(work)).set_index("rank")
    own = work.cells.iloc[np.unique(cell)]
    steps = own.groupby("rank")["step"].nunique()
    cost = own.groupby("rank")["clock_ns"].sum() / steps
    parts = {}
    for one in np.unique(rank).tolist():
        if table.loc[one, "z"] <= MAX_Z and cost[one] > 0:
            parts[one] = float(np.clip(1.0 + table.loc[one, "excess_ns"] / cost[one], 0.0, 1.0))
    return parts


def _places(
    rank: IntArray, cost: FloatArray, hosts: Mapping[int, str]
) -> list[tuple[list[int], Where]]:
    """Return the ranks of each host, as they share cooling and power, the costliest host first."""
    total = pd.Series(cost).groupby(rank).sum()
    by_host: dict[str, list[int]] = {}
    for one in sorted(total.index, key=lambda own: -total[own]):
        by_host.setdefault(hosts.get(int(one), ""), []).append(int(one))
    costly = sorted(by_host, key=lambda host: -float(total[by_host[host]].sum()))
    found = [(sorted(by_host[host]), host) for host in costly]
    places = [(ranks, _where(ranks, host)) for ranks, host in found[:MAX_PLACES]]
    rest = sorted(rank for ranks, _ in found[MAX_PLACES:] for rank in ranks)
    return [*places, (rest, {"ranks": rest})] if rest else places


def _where(ranks: list[int], host: str) -> Where:
    where: Where = {"rank": ranks[0]} if len(ranks) == 1 else {"ranks": ranks}
    return {**where, "host": host} if host else where

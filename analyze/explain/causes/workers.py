"""Slow ranks, alone or as a host or tensor-parallel group that is slow as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import pandas as pd
from msgspec.structs import replace

from meshscope.probe.schema.terms import Axis

from ...tables.arrays import FloatArray
from ...tables.results import Cause, Where
from ...tables.trace import Trace
from .effects import Work
from .shapley_player import Player, Union, spread

MIN_ALIKE = 0.7
"""Least excess over the most, among ranks that are slow as one."""
OTHERS = "other_slow_ranks"
"""The cause of all slow ranks that are no causes of their own."""


class Suspect(msgspec.Struct, frozen=True):
    """Ranks that work longer than their peers, for one reason as it seems."""

    ranks: tuple[int, ...]
    where: Where
    excess_ns: float
    """Of the worst of them, per step."""
    kind: str = "straggler_rank"
    """The cause that they are: slow, or ``expert_imbalance``."""
    sharing: tuple[int, ...] = ()
    """Ranks among which a repair spreads the excess evenly; none: it is gone."""
    parts: tuple[Suspect, ...] = ()
    """What it is made of, where several are reported as one because there are too many."""


def suspects_of(trace: Trace, excess_by_rank: dict[int, float]) -> list[Suspect]:
    """Group suspected ranks by host, then by tensor-parallel group, the worst first.

    All captured ranks of a host that is not the only one, or all members of a
    tensor-parallel group that is not the only one of its stage, point to what they
    share if they are slow alike; otherwise each points to itself.

    Args:
        trace: The capture.
        excess_by_rank: The suspected ranks with their excess per step, ns.
    """
    left = dict(excess_by_rank)
    found = []
    for where, members in (*_hosts(trace), *_tensor_groups(trace)):
        own = [left.get(rank, 0.0) for rank in members]
        if len(members) > 1 and min(own) >= MIN_ALIKE * max(own) > 0:
            left = {rank: excess for rank, excess in left.items() if rank not in members}
            found.append(Suspect(tuple(members), {**where, "ranks": list(members)}, max(own)))
    found += [Suspect((rank,), {"rank": rank}, excess) for rank, excess in left.items()]
    return sorted(found, key=lambda suspect: -suspect.excess_ns)


def with_rest(suspects: list[Suspect], most: int) -> list[Suspect]:
    """Return the worst suspects, and all others as one: coalitions of causes grow as 2**players.

    Args:
        suspects: All of them, the worst first.
        most: How many are causes of their own; one more needs no other name.
    """
    if len(suspects) <= most + 1:
        return suspects
    parts = tuple(suspects[most:])
    ranks = sorted(rank for part in parts for rank in part.ranks)
    rest = Suspect(tuple(ranks), {"ranks": ranks}, parts[0].excess_ns, OTHERS, parts=parts)
    return [*suspects[:most], rest]


def with_experts(
    trace: Trace, suspects: list[Suspect], group_of: Mapping[int, str]
) -> list[Suspect]:
    """Return the suspects, with those whose experts are popular called so.

    Args:
        trace: The capture.
        suspects: Ranks that work longer than their peers.
        group_of: The expert group of each rank whose load explains that.
    """
    groups = trace.frame("group")
    members = dict(zip(groups["group_id"].astype(str), groups["ranks"], strict=True))
    found = []
    for own in suspects:
        (first, *more) = own.ranks
        if not more and first in group_of:
            group = group_of[first]
            where: Where = {"rank": first, "axis": Axis.EP.value, "group_id": group}
            sharing = tuple(int(rank) for rank in members.get(group, ()))
            own = replace(own, where=where, kind="expert_imbalance", sharing=sharing)
        found.append(own)
    return found


def ranks_of(cause: Cause) -> list[int]:
    """Return the rank of a straggler, or the ranks that are slow as one."""
    return cause.where["ranks"] if "ranks" in cause.where else [cause.where["rank"]]


def worker_players(work: Work, reference: FloatArray, suspects: list[Suspect]) -> Iterator[Player]:
    """Yield one player a suspect: what its ranks work beyond their peers, or share with others."""
    excess = work.cells["work_ns"].to_numpy() - reference
    for suspect in suspects:
        effect = _of_suspect(work, excess, suspect)
        yield Player(suspect.kind, suspect.where, Union.WORKERS, spread(work, effect))


def _of_suspect(work: Work, excess: FloatArray, suspect: Suspect) -> FloatArray:
    """Return what repairing a suspect takes from each cell, ns."""
    sharing = [part for part in suspect.parts or (suspect,) if part.sharing]
    effect = np.where(np.isin(work.cells["rank"].to_numpy(), suspect.ranks), excess, 0.0)
    for part in sharing:
        own = np.where(np.isin(work.cells["rank"].to_numpy(), part.ranks), excess, 0.0)
        effect += _shared(work, own, part) - own
    return effect


def _shared(work: Work, excess: FloatArray, suspect: Suspect) -> FloatArray:
    """Return the effect of spreading the excess of a rank over the ranks that share its load.

    Each takes its part of what the rank works longer in the same place of the same step.
    """
    cells = work.cells[["rank", "step", "interval"]].assign(excess=excess)
    keys = ["step", "interval"]
    moved = cells[cells["rank"].isin(suspect.ranks)].groupby(keys)["excess"].sum()
    at = pd.MultiIndex.from_frame(cells[keys])
    part = moved.reindex(at).fillna(0.0).to_numpy() / len(suspect.sharing)
    return excess - np.where(cells["rank"].isin(suspect.sharing), part, 0.0)


def _hosts(trace: Trace) -> list[tuple[Where, list[int]]]:
    """Return the captured ranks of each named host, nothing where there is only one."""
    by_host: dict[str, list[int]] = {}
    for rank in trace.ranks:
        if rank in trace.clocks:
            by_host.setdefault(trace.clock_of(rank), []).append(rank)
    if len(by_host) < 2:
        return []
    return [({"host": host}, ranks) for host, ranks in by_host.items()]


def _tensor_groups(trace: Trace) -> list[tuple[Where, list[int]]]:
    """Return the captured members of each tensor-parallel group that has a peer group."""
    layout = trace.layout
    if layout is None or layout.tp < 2 or layout.world_size == layout.tp * layout.pp:
        return []
    seen = set(trace.ranks)
    groups = [[rank for rank in group if rank in seen] for group in layout.groups("tp")]
    return [({"axis": "tp"}, members) for members in groups if members]

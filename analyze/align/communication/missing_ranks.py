"""Who stands in, in a replay, for ranks that are not in the capture.

A replay that knew nothing of a missing rank would freeze the time that others waited for
it, and that freezes the whole job: one lone receive, and nothing that is repaired returns
anything. So a member that is missing is taken to issue its operation when the rank that is
in its place in another data-parallel replica issues the like one; what the wait took
beyond that stays as recorded. For example, with two replicas (ranks 0 and 1 in the first
stage, 2 and 3 in the last) and without a capture of rank 0::

    rank 2 receives 0->2 in step 4 for the third time  =>  it waits for what rank 1
    sends on 1->3 in step 4 for the third time
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import Axis, Direction

from ...tables.arrays import IntArray
from ...tables.trace import Trace

NO_RANK = -1
_NOWHERE = -1
_OTHER_END = {
    Direction.SEND.value: Direction.RECV.value,
    Direction.RECV.value: Direction.SEND.value,
}
_LIKE = {"rank": "of", "place": "like_place", "row": "event"}


class ReplicaProxies(NamedTuple):
    """Events that count as members of operations which lack one."""

    event: IntArray
    """Row of the event whose issue stands in."""
    join: IntArray
    """Operation that it counts as a member of."""
    unheld_frac: float
    """Share of its records in which a rank waited for a missing one that nobody stands in for:
    that of the rank with the largest."""
    late_frac: float
    """Share of its time for which a rank waited for missing ones longer than for those that stand
    in for them: that of the rank with the largest, ``waiting_rank``."""
    waiting_rank: int


NOBODY = ReplicaProxies(np.empty(0, np.int64), np.empty(0, np.int64), 0.0, 0.0, NO_RANK)


def replica_proxies(
    frame: pd.DataFrame, lacking: npt.NDArray[np.bool_], trace: Trace, time_ns: float
) -> ReplicaProxies:
    """Return who stands in for the ranks without a capture.

    Args:
        frame: The communication events, those of each rank in the order of issue.
        lacking: Which of them belong to an operation that lacks a member.
        trace: The capture: its ranks, groups and layout.
        time_ns: How long the analysed steps took together.
    """
    lone = lacking & ~(frame["is_send"] & frame["host"]).to_numpy(bool)
    if not lone.any():
        return NOBODY
    places = _Places(frame)
    likes = _likes(places, np.unique(places.of(lone)), trace)
    if likes.empty:
        return NOBODY
    ranks = frame["rank"].to_numpy()
    near = places.table(np.isin(ranks, [*np.unique(ranks[lone]), *likes["of"].unique()]))
    wanted = near[np.isin(near["row"], frame.index[lone])]
    # Most often nobody stands in, for anyone: a row for each missing member would hold as many times the events.
    stands_in = likes["like_place"].to_numpy() != _NOWHERE
    found = wanted.merge(likes[stands_in], on="place")
    there = near[["rank", "place", "step", "nth", "row"]].rename(columns=_LIKE)
    found = found.merge(there, how="left", on=["of", "like_place", "step", "nth"])
    is_held = found["event"].notna()
    held = found[is_held].drop_duplicates(["event", "join"])
    unheld_rows = found.loc[~is_held, "row"].to_numpy()
    of_nobody = np.isin(wanted["place"], likes.loc[~stands_in, "place"])
    unheld = wanted.loc[of_nobody | np.isin(wanted["row"], unheld_rows), "rank"].value_counts()
    share = (unheld / near["rank"].value_counts()).dropna()
    late_ns = _late_ns(found[is_held], frame)
    return ReplicaProxies(
        event=held["event"].to_numpy(np.int64),
        join=held["join"].to_numpy(np.int64),
        unheld_frac=float(share.max()) if len(share) else 0.0,
        late_frac=max(0.0, float(late_ns.max()) / time_ns) if len(late_ns) else 0.0,
        waiting_rank=int(late_ns.index.to_numpy()[late_ns.argmax()]) if len(late_ns) else NO_RANK,
    )


def _late_ns(held: pd.DataFrame, frame: pd.DataFrame) -> pd.Series:
    """Return by rank how much longer it waited than if the missing had come with their stand-ins.

    Earlier and later than these cancel out, so that what varies by chance adds up to little.
    """
    came = frame["start_ns"].reindex(held["event"]).groupby(held["row"].to_numpy()).max()
    rows = frame.loc[came.index]
    ready = np.maximum(rows["start_ns"], came) + rows["wire_ns"].fillna(0.0)
    late: pd.Series[float] = (rows["end_ns"] - ready).groupby(rows["rank"]).sum()
    return late


class _Places:
    """Where the events are, as numbers: each link and each group, for each kind of operation."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        link, group, kind = (frame[name].cat for name in ("link", "group_id", "kind"))
        self._names = [*map(str, link.categories), *map(str, group.categories)]
        self._links = len(link.categories)
        self._kinds = [*map(str, kind.categories)]
        at = np.where(frame["is_p2p"], link.codes, self._links + group.codes.astype(np.int64))
        self._place = at * len(self._kinds) + kind.codes
        self._numbers = {
            (name, number >= self._links): number for number, name in enumerate(self._names)
        }

    def of(self, is_wanted: npt.NDArray[np.bool_]) -> IntArray:
        """Return the places of some events."""
        return np.asarray(self._place[is_wanted])

    def named(self, place: int) -> tuple[str, str, bool]:
        """Return the name of a link or group, the kind of operation, and whether it is a link."""
        number, kind = divmod(place, len(self._kinds))
        return self._names[number], self._kinds[kind], number < self._links

    def number(self, name: str, kind: str, *, is_p2p: bool) -> int:
        """Return the place of that name and kind; ``_NOWHERE`` if no event is there."""
        number = self._numbers.get((name, not is_p2p))
        if number is None or kind not in self._kinds:
            return _NOWHERE
        return number * len(self._kinds) + self._kinds.index(kind)

    def table(self, is_wanted: npt.NDArray[np.bool_]) -> pd.DataFrame:
        """Return which operation at its place each of some events is, in its step."""
        columns = {
            name: self._frame[name].to_numpy()[is_wanted] for name in ("rank", "step", "join")
        }
        places = {"row": self._frame.index[is_wanted], "place": self._place[is_wanted]}
        table = pd.DataFrame({**places, **columns})
        table["nth"] = table.groupby(["rank", "step", "place"]).cumcount()
        return table


def _likes(places: _Places, of: IntArray, trace: Trace) -> pd.DataFrame:
    """Return one row for each rank that a place lacks: who stands in, and at which place."""
    replicas = _Replicas(trace)
    rows = []
    for place in of.tolist():
        name, kind, is_p2p = places.named(place)
        for rank, like, its_kind in replicas.likes(name, kind, is_p2p=is_p2p):
            rows.append((place, rank, places.number(like, its_kind, is_p2p=is_p2p)))
    return pd.DataFrame(rows, columns=["place", "of", "like_place"])


class _Replicas:
    """The ranks and places of other data-parallel replicas that are like those of one."""

    def __init__(self, trace: Trace) -> None:
        self._captured = set(trace.ranks)
        self._layout = trace.layout
        self._replicas: dict[tuple[int, ...], list[int]] | None = None
        self._members: dict[str, tuple[str, list[int]]] = {}
        self._group_of: dict[tuple[str, tuple[int, ...]], str] = {}
        groups = trace.frame("group").astype({"group_id": str, "axis": str})
        for group, axis, ranks in groups[["group_id", "axis", "ranks"]].itertuples(index=False):
            members = [int(rank) for rank in ranks]
            self._members[group] = (axis, members)
            self._group_of[axis, tuple(sorted(members))] = group

    def likes(self, place: str, kind: str, *, is_p2p: bool) -> Iterator[tuple[int, str, str]]:
        """Yield for each rank that a place lacks who stands in, in which place, and doing what."""
        axis, members = ("", [*map(int, place.split("->"))]) if is_p2p else self._members[place]
        inside = set(members)
        for missing in sorted(inside - self._captured):
            of = self._in_other_replica(missing)
            if of in inside:
                continue  # It is a member itself: what it issued is known to the operation.
            if of == NO_RANK:
                yield of, "", ""
                continue
            moved = [self._moved(member, of) for member in members]
            if is_p2p:
                yield of, f"{moved[0]}->{moved[1]}", _OTHER_END[kind]
            else:
                yield of, self._group_of.get((axis, tuple(sorted(moved))), ""), kind

    def _in_other_replica(self, rank: int) -> int:
        """Return a captured rank that differs from this one in its replica only."""
        layout = self._layout
        if layout is None or not 0 <= rank < layout.world_size:
            return NO_RANK
        at = layout.coordinates(rank)
        replicas = self._replicas_at().get(_without_replica(at), [])
        if not replicas:
            return NO_RANK
        nearest = replicas[bisect_right(replicas, at[Axis.DP]) % len(replicas)]
        return layout.rank(**{**at, Axis.DP: nearest})

    def _replicas_at(self) -> dict[tuple[int, ...], list[int]]:
        """Return which replicas were captured, sorted, by the place in a replica."""
        if self._replicas is None:
            self._replicas = defaultdict(list)
            layout = self._layout
            assert layout is not None
            for rank in sorted(self._captured):
                if rank < layout.world_size:
                    at = layout.coordinates(rank)
                    self._replicas[_without_replica(at)].append(at[Axis.DP])
            for own in self._replicas.values():
                own.sort()
        return self._replicas

    def _moved(self, rank: int, to: int) -> int:
        """Return the rank in the place of this one in the replica of another."""
        layout = self._layout
        assert layout is not None
        replica = layout.coordinates(to)[Axis.DP]
        return layout.rank(**{**layout.coordinates(rank), Axis.DP: replica})


def _without_replica(at: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(position for axis, position in at.items() if axis != Axis.DP)

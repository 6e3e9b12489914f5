"""Ranks whose positions of collectives do not fit those of the others.

Where the trace records no sequence numbers, the position of a collective is
counted from the start of each rank's capture. If one rank saw one more at its
head, all its positions are off by one, and its collectives differ from those of
the others in kind or size; if it saw one more in between, those behind it do. Recorded
numbers may start at other values on some ranks: then they share no position at all. The
positions that agree take the place of those that each rank counted by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import CollectiveKind

from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from .moves_by_time import MOST_SHIFT, moved_by_time, realign_transfers

SAME_SIZE = (
    CollectiveKind.ALL_REDUCE.value,
    CollectiveKind.ALL_GATHER.value,
    CollectiveKind.REDUCE_SCATTER.value,
    CollectiveKind.BROADCAST.value,
)
"""Kinds whose members must all state one size."""
_LEAST_OVERLAP = 3
"""Positions that must agree after the move."""
_LOOK_AHEAD = 4
"""Collectives behind a gap that must agree."""
IntArray = npt.NDArray[np.int64]


def realign(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[Limit]]:
    """Move ranks so that members of one position agree in kind and size.

    Only groups with a disagreement, or with ranks that share no position, are looked at.
    A rank is moved if there is a least move after which all positions that it shares with
    the rank that has the most agree in kind, size and step, and if they share enough of
    them. Failing that, collectives that it has more or less in between are stepped over,
    if what follows them tells how many. Where kind and size agree but steps do not, a rank is
    moved if then more steps agree and the ends are far closer together: that needs no clock to be
    wrong. Everything else stays where it is and is counted.

    Args:
        rows: Members: rank, step, group_id, seq, kind, size_bytes, start_ns, end_ns and any
            other columns.

    Returns:
        The rows, with ``seq`` changed where a rank was moved, and a limit for
        each move and for the disagreement that remains.
    """
    rows = rows.copy()
    size = rows["size_bytes"].where(rows["kind"].isin(SAME_SIZE), -1)
    what = rows.groupby([rows["kind"], size]).ngroup()
    what_when = rows.groupby([what, rows["step"]]).ngroup()
    limits: list[Limit] = []
    suspects = _disagreeing(rows, what)["group_id"].unique().tolist()
    for group_id in dict.fromkeys([*suspects, *_apart(rows)]):
        members = rows[rows["group_id"] == group_id]
        for rank, move in _moves(members, what_when[members.index]).items():
            own = members.index[members["rank"] == rank]
            rows.loc[own, "seq"] = rows.loc[own, "seq"].map(move.target)
            limits.append(move.limit(rank, str(group_id)))
    for group_id, rank, shift in moved_by_time(rows, what, suspects):
        limits.append(_Move({}, shift, 0, 0).limit(rank, group_id))
    left = len(_disagreeing(rows, what))
    if left:
        limits.append(message("doubt.collectives_differ", left=left))
    return rows, limits


def _disagreeing(rows: pd.DataFrame, what: pd.Series[int]) -> pd.DataFrame:
    """Return the positions at which members say different things."""
    described = what.groupby([rows["group_id"], rows["seq"]])
    differ = described.min() != described.max()
    return differ[differ].index.to_frame(index=False)


def _apart(rows: pd.DataFrame) -> list[str]:
    """Return the groups of which a rank shares no position with any other, at the same time."""
    found = []
    for group_id, members in rows.groupby("group_id"):
        by_rank = members.groupby("rank")
        if len(by_rank) < 2:
            continue
        alone = members.groupby("seq")["rank"].transform("nunique") == 1
        lonely = alone.groupby(members["rank"]).all()
        if not lonely.any():
            continue
        begin, end = by_rank["start_ns"].min(), by_rank["end_ns"].max()
        if begin.max() <= end.min():
            found.append(str(group_id))
    return found


class _Move(NamedTuple):
    """The new positions of one rank's collectives, by the old ones."""

    target: dict[int, int]
    shift: int
    extra: int
    lacking: int

    def limit(self, rank: int, group_id: str) -> Limit:
        """Return what the rank did otherwise than the others."""
        if not (self.extra or self.lacking):
            return message("assumed.positions_moved", rank=rank, group=group_id, shift=self.shift)
        return message(
            "assumed.positions_around_gaps",
            rank=rank,
            group=group_id,
            extra=self.extra,
            lacking=self.lacking,
        )


def _moves(members: pd.DataFrame, what: pd.Series[int]) -> dict[int, _Move]:
    """Return how each rank of one group must be moved, where that is plain."""
    frame = pd.DataFrame({"rank": members["rank"], "seq": members["seq"], "what": what})
    table = frame.drop_duplicates(["rank", "seq"]).pivot(index="seq", columns="rank", values="what")
    present = table.notna().sum()
    reference = table[present.idxmax()].dropna()
    found = {}
    for rank in table.columns:
        other = table[rank].dropna()
        shift = _least_shift(reference, other)
        if shift is None:
            move = _around_gaps(reference, other, int(table.index.max()) + 1)
        else:
            move = _Move({int(seq): int(seq) + shift for seq in other.index}, shift, 0, 0)
        if move is not None and any(old != new for old, new in move.target.items()):
            found[int(rank)] = move
    return found


def _around_gaps(reference: pd.Series[float], other: pd.Series[float], beyond: int) -> _Move | None:
    """Return positions that step over collectives which only one of the two has.

    At each difference the least number to step over on one side is taken after which the
    next ones agree. None where either side would do, or nothing does.

    Args:
        reference: What the reference rank did, by position.
        other: What the rank did, by position.
        beyond: First position that is free for collectives which nobody else has.
    """
    there, here = np.asarray(reference, dtype=np.int64), np.asarray(other, dtype=np.int64)
    positions, old = reference.index.to_numpy(), other.index.to_numpy()
    target: dict[int, int] = {}
    at_there = at_here = extra = lacking = 0
    while at_there < len(there) and at_here < len(here):
        same = _same_from(there[at_there:], here[at_here:])
        for step in range(same):
            target[int(old[at_here + step])] = int(positions[at_there + step])
        at_there, at_here = at_there + same, at_here + same
        if at_there == len(there) or at_here == len(here):
            break
        gap = _gap(there[at_there:], here[at_here:])
        if gap is None:
            return None
        skipped_there, skipped_here = gap
        for step in range(skipped_here):
            target[int(old[at_here + step])] = beyond + extra + step
        at_there, at_here = at_there + skipped_there, at_here + skipped_here
        extra, lacking = extra + skipped_here, lacking + skipped_there
    for step, position in enumerate(old[at_here:].tolist()):
        target[position] = beyond + extra + step
    shared = len(here) - extra - len(here[at_here:])
    return _Move(target, 0, extra, lacking) if shared >= _LEAST_OVERLAP else None


def _same_from(first: IntArray, second: IntArray) -> int:
    """Return how many leading elements are equal."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


def _gap(there: IntArray, here: IntArray) -> tuple[int, int] | None:
    """Return how many to step over on either side (one of them 0), None where that is not plain."""
    for size in range(1, MOST_SHIFT + 1):
        lacking = _fits(there[size:], here)
        extra = _fits(there, here[size:])
        if lacking != extra:
            return (size, 0) if lacking else (0, size)
        if lacking:
            return None
    return None


def _fits(there: IntArray, here: IntArray) -> bool:
    length = min(len(there), len(here), _LOOK_AHEAD)
    return length >= _LEAST_OVERLAP and np.array_equal(there[:length], here[:length])


def _least_shift(reference: pd.Series[float], other: pd.Series[float]) -> int | None:
    """Return the least move of ``other`` after which all positions that both have agree.

    None where no move does, or where one to either side does equally well. Ranks that
    share no position are laid head to head.
    """
    if not reference.index.intersection(other.index).size:
        head = int(reference.index[0] - other.index[0])
        return head if _agrees(reference, other, head) else None
    for distance in range(MOST_SHIFT + 1):
        fits = [s for s in {distance, -distance} if _agrees(reference, other, s)]
        if fits:
            return fits[0] if len(fits) == 1 else None
    return None


def _agrees(reference: pd.Series[float], other: pd.Series[float], shift: int) -> bool:
    here, there = reference.index.to_numpy(), other.index.to_numpy() + shift
    _, at, moved = np.intersect1d(here, there, return_indices=True)
    enough = max(_LEAST_OVERLAP, min(len(reference), len(other)) // 2)
    same = np.array_equal(reference.to_numpy()[at], other.to_numpy()[moved])
    return len(at) >= enough and same


def with_agreed_positions(trace: Trace) -> Trace:
    """Return the trace with the positions of collectives and transfers made to agree between ranks.

    Positions that were counted from the start of each rank's capture shift when a
    rank saw one more.
    """
    if not trace.capabilities.counts_positions_by_rank:
        return trace
    for name, realigned in (("collective", realign), ("p2p", realign_transfers)):
        trace = _agreed(trace, name, realigned)
    return trace


def _agreed(
    trace: Trace, name: str, realigned: Callable[[pd.DataFrame], tuple[pd.DataFrame, list[Limit]]]
) -> Trace:
    """Return the trace with the positions of one table made to agree."""
    if not trace.row_count(name):
        return trace
    if len(trace.ranks) == 1 and (name == "p2p" or _is_counted_once(trace.tables[name])):
        return trace
    frame = trace.frame(name)
    words = [word for word in ("group_id", "kind", "direction") if word in frame]
    rows, limits = realigned(frame.assign(**{word: frame[word].astype(str) for word in words}))
    if not limits:
        return trace
    moved = TABLES[name].conform(pa.Table.from_pandas(rows, preserve_index=False))
    found = trace.with_tables({name: moved})
    return replace(found, limits=(*trace.limits, *limits))


def _is_counted_once(collectives: pa.Table) -> bool:
    """Tell if no two collectives share a position: those of one rank then agree with all others."""
    positions = collectives.select(["group_id", "seq"]).combine_chunks()
    distinct = positions.group_by(["group_id", "seq"]).aggregate([])
    return bool(distinct.num_rows == positions.num_rows)

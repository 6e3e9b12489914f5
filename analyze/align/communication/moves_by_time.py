"""Positions of one group, or of one link, that time alone shows to be shifted on a rank.

What ranks did may be the same at every position though one of them began a step later. Then members of
one position are of different steps, and their ends are a step apart::

    rank 0    step 5: 0 1 2   step 6: 3 4 5
    rank 1                    step 6: 0 1 2    moved by 3
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Direction

from ...wording.limits import Limit
from ...wording.message import message

MOST_SHIFT = 32
"""Positions that a rank is moved by at most."""
_LEAST_BY_TIME = 2
"""The same where the ends must agree as well."""
_FAR_CLOSER = 0.1
"""Share of the distance of ends that is left after such a move, at most."""
_LEAST_OF_ONE_STEP = 0.5
"""Share of the positions that must be of one step after such a move: the first of a step may be
launched before its mark."""


def realign_transfers(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[Limit]]:
    """Move ends of transfers so that both ends of one position agree in size and step.

    An end is moved where then the steps agree and the ends are far closer together, as collectives are.

    Args:
        rows: Sends and receives: rank, peer, direction, step, group_id, seq, size_bytes, end_ns and any
            other columns.

    Returns:
        The rows, with ``seq`` changed where an end was moved, and a limit that says so.
    """
    sends = rows["direction"] == Direction.SEND.value
    source, target = (rows["rank"].where(own, rows["peer"]).astype(str) for own in (sends, ~sends))
    lanes = rows.assign(group_id=rows["group_id"] + " " + source + "->" + target)
    lanes = lanes[rows["peer"] >= 0]
    moved = moved_by_time(lanes, lanes["size_bytes"], [])
    if not moved:
        return rows, []
    found = rows.assign(seq=lanes["seq"].reindex(rows.index).fillna(rows["seq"]).astype(np.int64))
    ranks = sorted({rank for _, rank, _ in moved})
    return found, [message("assumed.transfers_moved", ranks=ranks, links=len(moved))]


def moved_by_time(
    rows: pd.DataFrame, what: pd.Series[int], known: list[str]
) -> list[tuple[str, int, int]]:
    """Move ranks whose members of one position are of different steps; return group, rank and shift.

    Args:
        rows: Members; their ``seq`` is changed in place.
        what: What each of them is.
        known: Groups that are left as they are.
    """
    found = []
    for group_id in _in_other_steps(rows, known):
        members = rows[rows["group_id"] == group_id]
        for rank, shift in _shifts_by_time(members, what[members.index]).items():
            rows.loc[members.index[members["rank"] == rank], "seq"] += shift
            found.append((group_id, rank, shift))
    return found


def _in_other_steps(rows: pd.DataFrame, known: list[str]) -> list[str]:
    """Return further groups in which members of one position are of different steps."""
    step = rows.groupby(["group_id", "seq"], observed=True)["step"]
    differ = step.min() != step.max()
    groups = differ[differ].index.get_level_values("group_id").unique()
    return [str(group) for group in groups if group not in known]


def _shifts_by_time(members: pd.DataFrame, what: pd.Series[int]) -> dict[int, int]:
    """Return by how much ranks of a group must be moved for their steps and ends to agree."""
    frame = members[["rank", "step", "seq", "end_ns"]].assign(what=what)
    # What a rank did before its first step is of a step of the others.
    frame = frame[frame["step"] >= 0].drop_duplicates(["rank", "seq"]).sort_values("seq")
    by_rank = {int(str(rank)): own.set_index("seq") for rank, own in frame.groupby("rank")}
    if len(by_rank) < 2:
        return {}
    reference = max(by_rank.values(), key=len)
    found = {}
    for rank, own in by_rank.items():
        tried = {*range(-MOST_SHIFT, MOST_SHIFT + 1), *_head_to_head(reference, own)}
        unmoved = _alike(reference, own, 0)
        if unmoved is None:
            continue
        fits = {
            shift: one
            for shift in sorted(tried)
            if (one := _alike(reference, own, shift)) is not None
            and one.is_whole
            and one.of_one_step >= max(_LEAST_OF_ONE_STEP, unmoved.of_one_step)
        }
        shift = _far_closer(fits, unmoved)
        if shift:
            found[rank] = shift
    return found


def _far_closer(fits: dict[int, _Alike], unmoved: _Alike) -> int:
    """Return the move after which ends lie far closer together, or keep their distance far better; 0 for none."""
    if not fits:
        return 0
    near = min(fits, key=lambda shift: fits[shift].apart_ns)
    if fits[near].apart_ns < _FAR_CLOSER * unmoved.apart_ns:
        return near
    # Clocks that are off put the ends apart, by the same at every position.
    steady = min(fits, key=lambda shift: fits[shift].scatter_ns)
    return steady if fits[steady].scatter_ns < _FAR_CLOSER * unmoved.scatter_ns else 0


def _head_to_head(reference: pd.DataFrame, own: pd.DataFrame) -> list[int]:
    """Return the move after which the first step that both have begins at one position."""
    there, here = (one.reset_index().groupby("step")["seq"].min() for one in (reference, own))
    return (there - here).dropna().astype(np.int64).tolist()[:1]


class _Alike(NamedTuple):
    """What two ranks have in common after a move."""

    apart_ns: float
    """Median distance of the ends at one position."""
    scatter_ns: float
    """Median deviation of that from its median."""
    of_one_step: float
    """Share of the positions of one step."""
    is_whole: bool
    """Whether both did the same at all positions, and these are enough."""


def _alike(reference: pd.DataFrame, own: pd.DataFrame, shift: int) -> _Alike | None:
    """Return what two ranks have in common after a move; None without a shared position."""
    shared = reference.index.intersection(own.index + shift)
    if not len(shared):
        return None
    there, here = reference.loc[shared], own.loc[shared - shift]
    apart = there["end_ns"].to_numpy() - here["end_ns"].to_numpy()
    enough = len(shared) >= max(_LEAST_BY_TIME, min(len(reference), len(own)) // 2)
    same = np.array_equal(there["what"].to_numpy(), here["what"].to_numpy())
    of_one_step = float((there["step"].to_numpy() == here["step"].to_numpy()).mean())
    return _Alike(
        apart_ns=float(np.median(np.abs(apart))),
        scatter_ns=float(np.median(np.abs(apart - np.median(apart)))),
        of_one_step=of_one_step,
        is_whole=enough and same,
    )

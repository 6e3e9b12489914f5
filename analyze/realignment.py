"""Ranks whose capture begins some collectives earlier or later than that of the others.

Where the trace records no sequence numbers, the position of a collective is
counted from the start of each rank's capture. If one rank saw one more at its
head, all its positions are off by one, and its collectives differ from those of
the others in kind or size.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import CollectiveKind

_SAME_SIZE = (
    CollectiveKind.ALL_REDUCE.value,
    CollectiveKind.ALL_GATHER.value,
    CollectiveKind.REDUCE_SCATTER.value,
    CollectiveKind.BROADCAST.value,
)
"""Kinds whose members must all state one size."""
_MOST_SHIFT = 32
"""Positions that a rank is moved by at most."""
_LEAST_OVERLAP = 3
"""Positions that must agree after the move."""


def realign(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Move ranks so that members of one position agree in kind and size.

    Only groups with a disagreement are looked at. A rank is moved if there is a
    least move after which all positions that it shares with the rank that has
    the most agree in kind, size and step, and if they share enough of them.
    Everything else stays where it is and is counted.

    Args:
        rows: Members: rank, step, group_id, seq, kind, size_bytes and any other columns.

    Returns:
        The rows, with ``seq`` changed where a rank was moved, and one sentence for
        each move and for the disagreement that remains.
    """
    rows = rows.copy()
    size = rows["size_bytes"].where(rows["kind"].isin(_SAME_SIZE), -1)
    what = rows.groupby([rows["kind"], size]).ngroup()
    what_when = rows.groupby([what, rows["step"]]).ngroup()
    limits = []
    for group_id in _disagreeing(rows, what)["group_id"].unique():
        members = rows[rows["group_id"] == group_id]
        for rank, shift in _shifts(members, what_when[members.index]).items():
            rows.loc[members.index[members["rank"] == rank], "seq"] += shift
            limits.append(
                f"Rank {rank} saw group {group_id} from another collective on: "
                f"its positions are moved by {shift}."
            )
    left = len(_disagreeing(rows, what))
    if left:
        limits.append(f"{left} collectives differ in kind or size between their members.")
    return rows, limits


def _disagreeing(rows: pd.DataFrame, what: pd.Series[int]) -> pd.DataFrame:
    """Return the positions at which members say different things."""
    told = what.groupby([rows["group_id"], rows["seq"]])
    differ = told.min() != told.max()
    return differ[differ].index.to_frame(index=False)


def _shifts(members: pd.DataFrame, what: pd.Series[int]) -> dict[int, int]:
    """Return by how much each rank of one group must be moved, where that is plain."""
    frame = pd.DataFrame({"rank": members["rank"], "seq": members["seq"], "what": what})
    table = frame.drop_duplicates(["rank", "seq"]).pivot(index="seq", columns="rank", values="what")
    present = table.notna().sum()
    reference = table[present.idxmax()].dropna()
    found = {}
    for rank in table.columns:
        shift = _least_shift(reference, table[rank].dropna())
        if shift:
            found[int(rank)] = shift
    return found


def _least_shift(reference: pd.Series[float], other: pd.Series[float]) -> int | None:
    """Return the least move of ``other`` after which all positions that both have agree.

    None where no move does, or where one to either side does equally well.
    """
    for distance in range(_MOST_SHIFT + 1):
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

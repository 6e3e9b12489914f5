"""Transfers between two ranks of which the sender and the receiver gave different sizes or types.

The backend waits for ever, or fails at both ends: neither is a victim, and no link is at fault.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import pandas as pd

from meshscope.probe.schema.terms import Direction

from ...tables.trace import Trace
from .mismatch import Issue
from .newest_attempt import rows_of_newest_attempt

_LINK = ["group_id", "source", "target"]
_KEY = [*_LINK, "seq"]
_COMPARED = ("dtype", "size_bytes", "elements")


class UnequalTransfer(NamedTuple):
    """The first transfer between two ranks whose ends differ, and that did not end at the receiver."""

    group_id: str
    source: int
    target: int
    seq: int
    sent: Issue
    expected: Issue
    sent_id: int
    """Event id on the sender."""
    expected_id: int
    """And on the receiver."""


def unequal_transfers(trace: Trace) -> list[UnequalTransfer]:
    """Return for each pair of ranks the first transfer whose ends differ and that the receiver never got.

    A sender may go on before anybody receives. Where ends differed before, in a transfer that was through,
    these may belong to different transfers: then it counts only if both ends have the same numbers in its step.
    """
    if trace.frame("p2p").empty or trace.frame("progress").empty:
        return []
    rows = transfer_ends(trace)
    is_send = rows["direction"] == Direction.SEND.value
    both = rows[is_send].merge(rows[~is_send], on=_KEY, suffixes=("_sent", "_expected"))
    differs = pd.Series(data=False, index=both.index)
    for name in _COMPARED:
        sent, expected = both[f"{name}_sent"], both[f"{name}_expected"]
        unknown = "" if name == "dtype" else 0
        differs |= (sent != unknown) & (expected != unknown) & (sent != expected)
    differing = both[differs].sort_values("seq")
    is_first = ~differing.duplicated(_LINK)
    wanted = differing["is_open_expected"] & (is_first | _is_aligned(rows, differing))
    first = differing[wanted].drop_duplicates(_LINK)
    return [
        UnequalTransfer(
            str(row["group_id"]),
            int(row["source"]),
            int(row["target"]),
            int(row["seq"]),
            _issue("send", row, "sent"),
            _issue("recv", row, "expected"),
            int(row["event_id_sent"]),
            int(row["event_id_expected"]),
        )
        for row in first.to_dict("records")
    ]


def _is_aligned(rows: pd.DataFrame, differing: pd.DataFrame) -> pd.Series[bool]:
    """Return where both ends began the step of a transfer with the same number and left none out."""
    window = [*_LINK, "step"]
    numbers = rows[rows["step"] >= 0].groupby([*window, "direction"])["seq"]
    by_end = numbers.agg(["min", "max", "size"])
    by_end["whole"] = by_end["max"] - by_end["min"] + 1 == by_end["size"]
    both = by_end.groupby(level=window).agg(
        least=("min", "min"), most=("min", "max"), whole=("whole", "all"), ends=("whole", "size")
    )
    proven = (both["least"] == both["most"]) & both["whole"] & (both["ends"] == len(Direction))
    same_step = differing["step_sent"] == differing["step_expected"]
    keys = pd.MultiIndex.from_frame(differing[[*_LINK, "step_sent"]])
    return same_step & proven.reindex(keys, fill_value=False).to_numpy(bool)


def transfer_ends(trace: Trace) -> pd.DataFrame:
    """Return the sends and receives with a known peer, with sender, receiver, and whether they were open at the end.

    ``elements`` is 0 where the bytes are known, or neither is.
    """
    rows = rows_of_newest_attempt(trace, "p2p")
    rows = rows[(rows["peer"] >= 0) & (rows["seq"] >= 0)].astype({"dtype": object})
    is_send = rows["direction"] == Direction.SEND.value
    calls = trace.frame("transfer_call")[["rank", "event_id", "elements"]]
    rows = rows.assign(
        source=rows["rank"].where(is_send, rows["peer"]),
        target=rows["peer"].where(is_send, rows["rank"]),
        dtype=rows["dtype"].where(rows["dtype"].notna(), ""),
        is_open=rows["end_ns"].isna(),
    )
    rows = rows.merge(calls.drop_duplicates(["rank", "event_id"]), "left", on=["rank", "event_id"])
    rows["elements"] = rows["elements"].fillna(0).astype("int64")
    columns = [
        "rank",
        "step",
        "direction",
        *_KEY,
        "size_bytes",
        "dtype",
        "elements",
        "is_open",
        "event_id",
    ]
    return rows[columns]


def _issue(kind: str, row: dict[Hashable, Any], end: str) -> Issue:
    size_bytes, elements = int(row[f"size_bytes_{end}"]), int(row[f"elements_{end}"])
    return Issue(kind, size_bytes or -1, str(row[f"dtype_{end}"]), elements or -1)

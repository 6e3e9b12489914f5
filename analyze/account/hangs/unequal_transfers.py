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

_KEY = ["group_id", "source", "target", "seq"]
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
    """Return for each pair of ranks the first transfer whose ends differ, if the receiver never got it.

    A sender may go on before anybody receives. Ends that differ in a transfer that was through belong
    to different transfers: records were lost.
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
    first = both[differs].sort_values("seq").drop_duplicates(_KEY[:3])
    first = first[first["is_open_expected"]]
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
    columns = ["rank", "direction", *_KEY, "size_bytes", "dtype", "elements", "is_open", "event_id"]
    return rows[columns]


def _issue(kind: str, row: dict[Hashable, Any], end: str) -> Issue:
    size_bytes, elements = int(row[f"size_bytes_{end}"]), int(row[f"elements_{end}"])
    return Issue(kind, size_bytes or -1, str(row[f"dtype_{end}"]), elements or -1)

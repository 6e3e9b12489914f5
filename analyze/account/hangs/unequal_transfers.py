"""Transfers between two ranks of which the sender and the receiver gave different sizes or types.

The backend waits for ever, or fails at both ends: neither is a victim, and no link is at fault.
"""

from __future__ import annotations

from typing import NamedTuple

from meshscope.probe.schema.terms import Direction

from ...tables.trace import Trace

_KEY = ["group_id", "source", "target", "seq"]


class UnequalTransfer(NamedTuple):
    """The first transfer between two ranks whose ends differ, and that did not end."""

    group_id: str
    source: int
    target: int
    seq: int
    sent_bytes: int
    expected_bytes: int
    sent_dtype: str
    expected_dtype: str


def unequal_transfers(trace: Trace) -> list[UnequalTransfer]:
    """Return for each pair of ranks the first transfer whose ends differ, if both were open at the end.

    Ends that differ in a transfer that was through belong to different transfers: records were lost.
    """
    rows = trace.frame("p2p")
    if rows.empty or trace.frame("progress").empty:
        return []
    rows = rows[(rows["peer"] >= 0) & (rows["seq"] >= 0)].astype({"group_id": str, "dtype": object})
    is_send = rows["direction"].astype(str) == Direction.SEND.value
    rows = rows.assign(
        source=rows["rank"].where(is_send, rows["peer"]),
        target=rows["peer"].where(is_send, rows["rank"]),
        dtype=rows["dtype"].where(rows["dtype"].notna(), ""),
    )[[*_KEY, "size_bytes", "dtype", "end_ns"]]
    both = rows[is_send].merge(rows[~is_send], on=_KEY, suffixes=("_sent", "_expected"))
    sent, expected = both["size_bytes_sent"], both["size_bytes_expected"]
    differs = (sent > 0) & (expected > 0) & (sent != expected)
    sent, expected = both["dtype_sent"], both["dtype_expected"]
    differs |= (sent != "") & (expected != "") & (sent != expected)
    first = both[differs].sort_values("seq").drop_duplicates(_KEY[:3])
    first = first[first["end_ns_sent"].isna() & first["end_ns_expected"].isna()]
    columns = ["size_bytes_sent", "size_bytes_expected", "dtype_sent", "dtype_expected"]
    found = first[[*_KEY, *columns]].itertuples(index=False, name=None)
    return [
        UnequalTransfer(group, int(source), int(target), int(seq), int(a), int(b), str(c), str(d))
        for group, source, target, seq, a, b, c, d in found
    ]

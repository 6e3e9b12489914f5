"""Messages that arrived although the receiver asked for another size or type than was sent.

Gloo puts 2,000 bytes into a buffer of 4,000 and reports success: the rest of the buffer is what it was before.

Both ends count their messages by themselves, and messages with tags may be received in another order. Ends are
therefore compared only in steps in which both counted the same numbers without a gap, and only as far
as the sender sent more of one size, and the receiver asked for more of another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from meshscope.probe.schema.terms import Direction

from ..align.communication.rows import encoded, integers
from ..tables.arrays import combined
from ..tables.numbering import numbered
from ..tables.sorting import greatest_of_group, least_of_group
from ..tables.trace import Trace
from .differing import type_codes, words_of
from .hangs.mismatch import Issue

_LINK = ["group_id", "source", "target"]
_WINDOW = [*_LINK, "step"]
_END = ["size_bytes", "dtype"]


class DifferingTransfers(NamedTuple):
    """Messages from one rank to another that ended and whose ends differ."""

    group_id: str
    source: int
    target: int
    sent: Issue
    expected: Issue
    """Of the first of them."""
    messages: int
    steps: int
    first_step: int
    """-1 where no steps were counted."""
    seq: int
    """Of the first."""


def differing_transfers(trace: Trace) -> list[DifferingTransfers]:
    """Return for each pair of ranks the messages whose ends differ and that ended, the most first."""
    if not trace.capabilities.counts_every_operation or not trace.row_count("p2p"):
        return []
    ends = _ends(trace)
    if ends.empty:
        return []
    is_send = ends["is_send"]
    columns = [*_WINDOW, "seq", *_END]
    both = ends.loc[is_send, columns].merge(
        ends.loc[~is_send, [*columns, "is_ended"]],
        on=[*_WINDOW, "seq"],
        suffixes=("_sent", "_expected"),
    )
    both = both[both["is_ended"]]
    typed = (both["dtype_sent"] != "") & (both["dtype_expected"] != "")
    differs = both["size_bytes_sent"] != both["size_bytes_expected"]
    differs |= typed & (both["dtype_sent"] != both["dtype_expected"])
    both = both[differs]
    if both.empty:
        return []
    at = pd.MultiIndex.from_frame(both[_WINDOW])
    both = both[_proven(ends).reindex(at, fill_value=False).to_numpy(bool)]
    both = both[_is_no_other_order(ends, both)]
    found = [_one(own.sort_values(["step", "seq"])) for _, own in both.groupby(_LINK)]
    return sorted(found, key=lambda one: (-one.messages, one.source, one.target))


def _ends(trace: Trace) -> pd.DataFrame:
    """Return the ends between ranks of which some message differs: sender, receiver, step, number, size and type."""
    table = trace.tables["p2p"]
    direction, directions = encoded(table, "direction")
    is_send = np.array([word == Direction.SEND.value for word in directions], dtype=bool)[direction]
    rank, peer, seq = (integers(table, name) for name in ("rank", "peer", "seq"))
    group, groups = encoded(table, "group_id")
    source, target = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    link = numbered(np.asarray(group, np.int64), source, target)
    dtype, types = type_codes(table)
    size = integers(table, "size_bytes")
    code, message = combined(size, dtype), numbered(link, seq)
    differs = least_of_group(code, message) != greatest_of_group(code, message)
    own = np.isin(link, np.unique(link[differs & (peer >= 0)]))
    ends = pd.DataFrame(
        {
            "rank": rank[own],
            "event_id": integers(table, "event_id")[own],
            "group_id": words_of(group[own], groups),
            "source": source[own],
            "target": target[own],
            "step": integers(table, "step")[own],
            "seq": seq[own],
            "size_bytes": size[own],
            "dtype": words_of(dtype[own], [*types, ""]),
            "is_send": is_send[own],
            "is_ended": pc.is_valid(table["end_ns"]).to_numpy()[own],
        }
    )
    return ends.drop_duplicates(["rank", "event_id"], keep="last")


def _proven(ends: pd.DataFrame) -> pd.Series[bool]:
    """Return by pair and step whether both ends have the same numbers, without a gap."""
    numbers = ends.groupby([*_WINDOW, "is_send"])["seq"].agg(["min", "max", "size"])
    whole = numbers["max"] - numbers["min"] + 1 == numbers["size"]
    by_window = numbers.assign(whole=whole).groupby(level=_WINDOW)
    least, most = by_window.min(), by_window.max()
    same = (least["min"] == most["min"]) & (least["max"] == most["max"])
    proven: pd.Series[bool] = same & least["whole"] & (by_window.size() == 2)
    return proven


def _is_no_other_order(ends: pd.DataFrame, both: pd.DataFrame) -> pd.Series[bool]:
    """Return which differences remain however the messages of a step are ordered."""
    signs = ends["is_send"].map({True: 1, False: -1})
    surplus = signs.groupby([ends[name] for name in (*_WINDOW, *_END)]).sum()

    def of(end: str) -> pd.Series[int]:
        keys = both[[*_WINDOW, *(f"{name}_{end}" for name in _END)]]
        return pd.Series(surplus.reindex(pd.MultiIndex.from_frame(keys)).to_numpy(), both.index)

    return (of("sent") > 0) & (of("expected") < 0)


def _one(own: pd.DataFrame) -> DifferingTransfers:
    first = own.iloc[0]
    sent, expected = (
        Issue(kind, int(first[f"size_bytes_{end}"]) or -1, str(first[f"dtype_{end}"]))
        for kind, end in (("send", "sent"), ("recv", "expected"))
    )
    return DifferingTransfers(
        group_id=str(first["group_id"]),
        source=int(first["source"]),
        target=int(first["target"]),
        sent=sent,
        expected=expected,
        messages=len(own),
        steps=int(own["step"].nunique()),
        first_step=int(first["step"]),
        seq=int(first["seq"]),
    )

"""Bytes of the recorded operations that leave each host, and enter it, by axis.

A collective over several hosts leaves each of them once, as a ring that is built host by host does
(NCCL); its bytes are those of the NCCL tests' bus bandwidth. An all-to-all sends each member its share.
A message leaves where its ends are on two hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import CollectiveKind

from ...align.communication.bandwidth import bus_factor
from ...align.communication.events import CommunicationEvents
from ...tables.arrays import FloatArray
from ...tables.trace import Trace


class CrossingBytes(NamedTuple):
    """What each event sends out of its host, and receives there; one value an event."""

    host: pd.Series
    """Of the member."""
    sent_bytes: FloatArray
    """This member's part of what leaves its host."""
    received_bytes: FloatArray


def crossing_events(trace: Trace, events: CommunicationEvents) -> pd.DataFrame:
    """Return the operations that cross hosts, a row a member.

    Returns:
        host (of the member), axis, group_id, step, kind, size_bytes, sent_bytes (this member's part
        of what leaves its host), received_bytes, start_ns (of its transfer), end_ns, wire_ns.
    """
    frame = events.frame
    crossing = crossing_bytes(trace, frame)
    table = pd.DataFrame(
        {
            "host": crossing.host,
            "axis": frame["axis"].astype(str),
            "group_id": frame["group_id"].astype(str),
            "step": frame["step"],
            "kind": frame["kind"].astype(str),
            "size_bytes": frame["size_bytes"].to_numpy(np.float64),
            "sent_bytes": crossing.sent_bytes,
            "received_bytes": crossing.received_bytes,
            "start_ns": frame["split_ns"].astype(float),
            "end_ns": frame["end_ns"].astype(float),
            "wire_ns": frame["wire_ns"].astype(float),
        }
    )
    is_any = (table["sent_bytes"] > 0) | (table["received_bytes"] > 0)
    found: pd.DataFrame = table[is_any].reset_index(drop=True)
    return found


def crossing_bytes(trace: Trace, frame: pd.DataFrame) -> CrossingBytes:
    """Return what communication events send out of their hosts, and receive there.

    Args:
        trace: The capture.
        frame: Communication events: rank, group_id, kind, is_p2p, is_send, link, size_bytes.
    """
    host = frame["rank"].map({rank: trace.clock_of(rank) for rank in trace.ranks}).astype(str)
    group = trace.frame("group")
    held = {
        str(name): Counter(trace.clock_of(rank) for rank in ranks)
        for name, ranks in zip(group["group_id"], group["ranks"], strict=True)
    }
    keys = pd.DataFrame(
        {
            "group": frame["group_id"].astype(str),
            "kind": frame["kind"].astype(str),
            "host": host,
            "is_p2p": frame["is_p2p"],
        }
    )
    codes = keys.groupby(["group", "kind", "host", "is_p2p"]).ngroup()
    named = keys.assign(code=codes).drop_duplicates("code").sort_values("code")
    factors = [
        0.0 if is_p2p else _part(held.get(name, Counter()), kind, own)
        for name, kind, own, is_p2p in named[["group", "kind", "host", "is_p2p"]].itertuples(
            index=False
        )
    ]
    size = frame["size_bytes"].to_numpy(np.float64)
    sent = np.array(factors, dtype=np.float64)[codes.to_numpy()] * size
    received = sent.copy()
    is_p2p, is_send = frame["is_p2p"].to_numpy(bool), frame["is_send"].to_numpy(bool)
    crosses = _crosses(trace, frame)
    sent[is_p2p] = np.where(is_send & crosses, size, 0.0)[is_p2p]
    received[is_p2p] = np.where(~is_send & crosses, size, 0.0)[is_p2p]
    return CrossingBytes(host, sent, received)


def _part(held: Mapping[str, int], kind: str, host: str) -> float:
    """Return what leaves the host for each byte of the message, divided among its members there."""
    members, own = sum(held.values()), held.get(host, 0)
    if len(held) < 2 or not own:
        return 0.0
    factor = bus_factor(kind, members) or 0.0
    if kind == CollectiveKind.ALL_TO_ALL.value:
        return factor * (members - own) / (members - 1)
    return factor / own


def _crosses(trace: Trace, frame: pd.DataFrame) -> np.ndarray:
    """Return which messages have ends on two hosts."""
    link = frame["link"].cat
    found = []
    for name in link.categories:
        ends = str(name).split("->")
        hosts = {trace.clock_of(int(end)) for end in ends if end.lstrip("-").isdigit()}
        found.append(len(ends) == 2 and len(hosts) == 2)
    return np.array([*found, False], dtype=bool)[link.codes.to_numpy()]

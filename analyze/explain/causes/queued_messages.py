"""Messages that wait behind a collective on their way out of a host.

A host leaves a collective when it has received all, and what it sent may still lie in its buffers. What it
sends next comes behind that::

    sender    collective ---|  send
    peer      collective ----------------|
    receiver            receive --- waits ---|- wire -|

The time until the last member has left the collective is the collective's, whatever axis the message is of.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...align.communication.events import APART_NS
from ...tables.arrays import BoolArray, FloatArray


def queued_behind(frame: pd.DataFrame, events: BoolArray) -> FloatArray:
    """Return how long each message lay behind collectives that its sender had left, by event, ns.

    Args:
        frame: Communication events.
        events: Which of them are the collectives.
    """
    behind = np.zeros(len(frame))
    is_p2p, is_send = (frame[name].to_numpy(bool) for name in ("is_p2p", "is_send"))
    on_its_way = _left_early(frame[events & ~is_p2p & frame["host"].to_numpy(bool)])
    is_timed = is_p2p & ~is_send & frame["wire_ns"].notna().to_numpy()
    if on_its_way.empty or not is_timed.any():
        return behind
    sent = frame.loc[is_send, ["join", "rank", "start_ns"]].drop_duplicates("join")
    timed = frame.loc[is_timed, ["join", "end_ns", "wire_ns"]].assign(
        event=np.flatnonzero(is_timed)
    )
    messages = timed.merge(sent, on="join").sort_values("start_ns")
    messages["rank"] = messages["rank"].astype(np.int64)
    found = pd.merge_asof(messages, on_its_way, on="start_ns", by="rank").dropna(subset="until_ns")
    since = found["end_ns"] - found["wire_ns"]
    part = (found[["end_ns", "until_ns"]].min(axis=1) - since).clip(lower=0)
    behind[found["event"].to_numpy()] = part.to_numpy()
    return behind


def _left_early(members: pd.DataFrame) -> pd.DataFrame:
    """Return rank, start_ns and until_ns (when the last member left) of those who left far earlier."""
    until = members.groupby("join")["end_ns"].transform("max")
    early = (until - members["end_ns"]) > APART_NS
    rows = pd.DataFrame(
        {
            "rank": members["rank"].astype(np.int64),
            "start_ns": members["start_ns"],
            "until_ns": until.astype(np.float64),
        }
    )
    return rows[early].sort_values("start_ns")

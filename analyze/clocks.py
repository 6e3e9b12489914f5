"""Whether the ranks' clocks agree, judged from the ends of collectives.

Members leave a synchronising collective together, so the differences of their
recorded ends show the differences of their clocks. Ends are used only where the
member was seen to stand still until the end (host) or on the device.
"""

from __future__ import annotations

import pandas as pd

from .communication import BLOCKING_NS, CommunicationEvents
from .waiting import SYNCHRONISING

MAX_SKEW_NS = 1_000_000
"""Constant offset that is taken as a wrong clock; members leave within far less."""
MAX_SPREADS = 5.0
"""It must also be that many times the usual scatter of the rank's ends."""


def clock_offsets(events: CommunicationEvents) -> pd.Series:
    """Return the offset of each rank's clock to its groups' median, in ns, by rank.

    Only ranks whose offset is beyond the limits; empty where the clocks agree.
    """
    frame = events.frame
    if frame.empty:
        return pd.Series(dtype=float)
    stood = ~frame["host"] | ((frame["wait_end_ns"] - frame["wait_start_ns"]) > BLOCKING_NS)
    kinds = [kind.value for kind in SYNCHRONISING]
    rows = frame[frame["kind"].isin(kinds) & frame["end_ns"].notna() & stood]
    rows = rows[rows.groupby("join")["rank"].transform("nunique") > 1]
    early = rows["end_ns"] - rows.groupby("join")["end_ns"].transform("median")
    by_rank = early.groupby(rows["rank"])
    offset = by_rank.median()
    scatter = (early - by_rank.transform("median")).abs().groupby(rows["rank"]).median()
    wrong = (offset.abs() > MAX_SKEW_NS) & (offset.abs() > MAX_SPREADS * scatter)
    return offset[wrong].sort_values(key=abs, ascending=False)

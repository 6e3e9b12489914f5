"""A send to a rank that receives from another one: neither of them waits for who it should.

Three ranks; 1 sends to 2, and 2 receives from 0, which has never sent it anything::

    rank 0     (nothing open)
    rank 1     send to 2             waits for 2
    rank 2     receive from 0        waits for 0: it did not arrive, but nobody expects it to
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from meshscope.probe.schema.terms import Direction

from ...tables.trace import Trace
from .hang import WaitGraph
from .unequal_transfers import transfer_ends


class CrossedTransfer(NamedTuple):
    """A send whose receiver waits for a message from another rank."""

    group_id: str
    source: int
    target: int
    other: int
    """The rank that the receiver waits for, which has never sent it anything."""
    sent_id: int
    """Event id of the send."""
    received_id: int
    """Event id of the receive."""


def crossed_transfers(trace: Trace, graph: WaitGraph) -> list[CrossedTransfer]:
    """Return sends that nobody receives, to ranks that wait for a message that nobody sends.

    Where a third rank did not arrive anywhere, or has no capture, these may only wait for their turn behind it.
    """
    if graph.uncaptured or trace.frame("p2p").empty:
        return []
    rows = transfer_ends(trace)
    is_send = rows["direction"] == Direction.SEND.value
    key = ["group_id", "source", "target", "seq"]
    alone = rows[~rows.duplicated(key, keep=False) & rows["is_open"]]
    sends = alone[alone["direction"] == Direction.SEND.value]
    receives = alone[alone["direction"] == Direction.RECV.value]
    known = set(zip(*(rows.loc[is_send, name] for name in key[:3]), strict=True))
    receives = receives[_are_new(receives, known) & receives["source"].isin(trace.ranks)]
    both = sends.merge(receives, on=["group_id", "target"], suffixes=("", "_other"))
    both = both.sort_values("event_id").drop_duplicates(["group_id", "target"])
    return [
        CrossedTransfer(group, int(source), int(target), int(other), int(sent), int(received))
        for group, source, target, other, sent, received in zip(
            *(both[name] for name in ("group_id", "source", "target", "source_other")),
            *(both[name] for name in ("event_id", "event_id_other")),
            strict=True,
        )
        if set(graph.absent) <= {int(other)}
    ]


def _are_new(receives: pd.DataFrame, known: set[tuple[str, int, int]]) -> pd.Series:
    channels = zip(*(receives[name] for name in ("group_id", "source", "target")), strict=True)
    return pd.Series([one not in known for one in channels], index=receives.index, dtype=bool)

"""Whether sends of hosts wait for their receivers.

A backend may copy what is sent and let the sender go (MPI, for small messages), or hold it until the
other end has called (gloo does, whatever the size). What the sender waits for in the second case
is the receiver, not the wire, and a slow receiver costs it time. The backend does not say which it is,
but the ends of sends do, where the receiver came later than the sender::

    sender      issue ----------- end              issue - end
    receiver              issue - end                            issue - end
                held until it came                 buffered
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...tables.arrays import BoolArray
from ...tables.extremes import least_of_group

LEAST_LATE_NS = 100_000
"""How much later than the sender a receiver must come, to tell anything."""
HELD = 0.5
"""Least share of that time that a sender stands still which is held."""
LEAST_SEEN = 8
"""Sends that must tell it."""
MOST_LET_GO = 0.1
"""Share of these up to which senders may have been let go though sends are held."""


def are_buffered(rows: pd.DataFrame) -> BoolArray:
    """Return which sends and receives are sends that do not wait for their receiver.

    Args:
        rows: Sends and receives with ``join``, one number for both ends of each.
    """
    sends = (rows["is_send"] & rows["host"]).to_numpy(bool)
    if not sends.any():
        return sends
    receives = rows["start_ns"].where(~rows["is_send"]).to_numpy(np.float64)
    called = least_of_group(receives, rows["join"].to_numpy())
    begin, end = (rows[name].to_numpy()[sends] for name in ("wait_start_ns", "wait_end_ns"))
    late, stood = called[sends] - begin, end - begin
    tells = late > LEAST_LATE_NS
    let_go = stood[tells] < HELD * late[tells]
    if len(let_go) < LEAST_SEEN or let_go.mean() > MOST_LET_GO:
        return sends
    return np.zeros(len(rows), dtype=bool)

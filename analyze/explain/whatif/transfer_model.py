"""What a change of the transfers is computed from: sizes, times and members of all operations."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd
from msgspec.structs import replace

from ...align.communication.bandwidth import (
    fixed_times,
    group_sizes,
    time_of_event,
    transfer_table,
)
from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.trace import Trace
from ..replay.program import Program
from ..run_account import Account


class TransferModel(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a program with the parts of their times; all arrays are ``(events,)``."""

    trace: Trace
    frame: pd.DataFrame
    """The events of the program."""
    members: IntArray
    """Of the group of each event; 0 where its members are unknown."""
    wire_ns: FloatArray
    """NaN where unknown."""
    low_ns: FloatArray
    fixed_ns: FloatArray
    """The part of the wire time that does not depend on the size; at most the wire time."""
    high_ns: FloatArray

    def with_fixed(self, fixed_ns: FloatArray) -> TransferModel:
        """Return the same with another fixed time, within its interval."""
        return replace(self, fixed_ns=fixed_ns)

    def of_axis(self, axis: str) -> BoolArray:
        """Return which events are of an axis."""
        return np.asarray(self.frame["axis"] == axis)

    @property
    def is_sure(self) -> bool:
        """Return whether fixed times have no interval."""
        return bool(np.allclose(self.low_ns, self.high_ns, equal_nan=True))


def transfer_model(account: Account, program: Program) -> TransferModel:
    """Return the events of the program with the parts of their times."""
    frame = program.events
    members = group_sizes(account.trace, frame)
    wire = frame["wire_ns"].to_numpy(np.float64)
    table = time_of_event(fixed_times(transfer_table(frame, members)), frame, members)
    low, fixed, high = (
        np.fmin(table[name].to_numpy(np.float64), wire)
        for name in ("low_ns", "fixed_ns", "high_ns")
    )
    return TransferModel(
        trace=account.trace,
        frame=frame,
        members=members,
        wire_ns=wire,
        low_ns=low,
        fixed_ns=fixed,
        high_ns=high,
    )

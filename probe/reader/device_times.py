"""Times on the device, joined to the spans and operations that they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.records import DEVICE_TIME_RECORD
from .rank_records import RankRecords

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """The device times of a rank by event id, sorted; of several the largest."""

    event_id: Ints
    start_ns: Ints
    dur_ns: Ints

    @classmethod
    def of(cls, records: RankRecords) -> DeviceTimes:
        """Return the device times of a rank."""
        raw = records.tables.get(DEVICE_TIME_RECORD.name)
        if raw is None:
            none = np.zeros(0, np.int64)
            return cls(none, none, none)
        columns = [
            np.asarray(raw[name].to_numpy(), np.int64)
            for name in ("event_id", "start_ns", "dur_ns")
        ]
        order = np.argsort(columns[0], kind="stable")
        event_id, start, dur = (column[order] for column in columns)
        first = np.flatnonzero(np.diff(event_id, prepend=event_id[:1] - 1))
        if not len(first):
            return cls(event_id, start, dur)
        # Start and length may come apart; one that is not known is -1.
        latest = (np.maximum.reduceat(times, first) for times in (start, dur))
        return cls(event_id[first], *latest)

    def columns(self, raw: pa.Table) -> dict[str, pa.Array]:
        """Return the device columns of records; null where the device was not timed."""
        wanted = np.asarray(raw["slot_seq"].to_numpy(), np.int64)
        start, dur = np.full(len(wanted), -1), np.full(len(wanted), -1)
        if len(self.event_id):
            place = np.minimum(np.searchsorted(self.event_id, wanted), len(self.event_id) - 1)
            known = self.event_id[place] == wanted
            start[known], dur[known] = self.start_ns[place[known]], self.dur_ns[place[known]]
        return {
            "device_start_ns": pa.array(start, mask=start < 0),
            "device_dur_ns": pa.array(dur, mask=dur < 0),
        }

"""What the counters of a host's agent mean for the samples of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .note import Note, note, of_host
from .printable import printable

LOST = {
    "disk_floor_dropped": "missing.samples_without_room",
    "row_errors": "missing.unstorable_samples",
    "rows_dropped": "missing.unwritten_samples",
    "segment_records_dropped": "missing.deleted_samples",
    "segment_write_dropped": "missing.unwritten_samples",
}
"""Counters of samples that are not there; the sentence of each says why."""
HARMLESS = frozenset(
    {
        "manifest_write_errors",  # The manifest that is read was written later, or is found missing.
        "recording_errors",  # A recording for another host's replay, which no analysis reads.
        "segment_delete_errors",  # The capture holds more than it should.
        "segment_write_errors",  # The samples of it are counted too.
        "segments_dropped",  # The samples of them are counted too.
    }
)
"""Counters that change no number: what they stand for is counted or found elsewhere."""


def host_counters(host: str, counters: Mapping[str, object]) -> Iterator[Note]:
    """Yield one note for each counter of an agent that is not zero."""
    for name, amount in sorted(counters.items()):
        if type(amount) is not int or amount <= 0:
            continue
        code = LOST.get(name)
        if code is None:
            yield note(
                "counted.by_probe", who=of_host(host), amount=amount, counter=printable(name)
            )
        else:
            yield Note(code, {"host": host, "amount": amount})

"""What the counters of the probe mean for the numbers of a result.

A counter is a doubt only where it is large beside what it is counted among: one operation of ten thousand moves no
share by as much as it is rounded. The others are noted too, under ``counted``, which no text shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..schema.note import Note, note, of_ranks
from ..schema.printable import printable
from .rank_records import RankRecords
from .sources import source_of

MATTERS = 0.001
"""Share of like things from which on a counter matters: results show shares to 0.1 %."""
OPERATIONS, RECORDS = "operations", "records"
ERRORS = "_errors"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a counter says of a capture."""

    code: str
    """Of the sentence, on ``who`` with the ``amount``, and with the ``total`` it is among."""
    among: str
    """What it is compared with: a field of ``Made``."""


COUNTERS: Mapping[str, Meaning] = {
    "communication_failed": Meaning("doubt.communication_failed", ""),
    "collective_times_dropped": Meaning("doubt.collectives_untimed", OPERATIONS),
    "late_ends_dropped": Meaning("doubt.ends_late", OPERATIONS),
    "device_times_dropped": Meaning("doubt.device_times_dropped", RECORDS),
    "group_members_unseen": Meaning("doubt.groups_of_unknown_members", ""),
    "early_records_dropped": Meaning("missing.early_records", RECORDS),
    "record_errors": Meaning("missing.unstorable_records", RECORDS),
    "ring_overwritten_dropped": Meaning("missing.overwritten_records", RECORDS),
    "unfinished_dropped": Meaning("missing.unfinished_records", RECORDS),
    "disk_floor_dropped": Meaning("missing.records_without_room", RECORDS),
    "segment_write_dropped": Meaning("missing.unwritten_records", RECORDS),
    "segment_records_dropped": Meaning("missing.deleted_records", RECORDS),
    "parts_dropped": Meaning("missing.deleted_parts", ""),
}
"""Counters that say how far a number may be wrong."""

HARMLESS = frozenset(
    {
        "annotation_errors",  # What would have been noted is missing where it is looked for.
        "communication_end_unseen",  # Operations without an end are counted in the steps shown.
        "background_save_collectives",  # Said of a capture that ends in a hang.
        "flush_timeouts",  # The flush was made all the same.
        "fold_errors",  # Everything is in the records instead of in sums.
        "levels_lowered",  # The steps that hold less are named.
        "manifest_write_errors",  # The manifest that is read was written later, or is found missing.
        "manifest_write_timeouts",  # The names were written later.
        "ring_copy_errors",  # The last records of a killed process are found missing.
        "segment_delete_errors",  # The capture holds more than it should.
        "segment_write_errors",  # The records of it are counted too.
        "segments_dropped",  # The records of them are counted too.
        "writer_errors",  # What it did not write is found missing.
    }
)
"""Counters that change no number: what they stand for is counted or found elsewhere."""


def counter_notes(ranks: Sequence[RankRecords]) -> Iterator[Note]:
    """Yield one note a counter, for all ranks that have it."""
    names = sorted({name for rank in ranks for name in rank.made.counters})
    for name in names:
        yield _noted(name, [rank for rank in ranks if name in rank.made.counters])


def _noted(name: str, holders: Sequence[RankRecords]) -> Note:
    amount = sum(rank.made.counters[name] for rank in holders)
    values: dict[str, Any] = {"who": of_ranks([rank.rank for rank in holders]), "amount": amount}
    meaning = COUNTERS.get(name)
    if meaning is not None:
        total = sum(getattr(rank.made, meaning.among) for rank in holders) if meaning.among else 0
        if amount >= MATTERS * total:
            among = {"total": max(total, amount)} if meaning.among else {}
            return Note(meaning.code, {**values, **among})
    elif name.endswith(ERRORS) and name not in HARMLESS:
        return note("doubt.source_errors", **values, **source_of(name.removesuffix(ERRORS)))
    return note("counted.by_probe", **values, counter=printable(name))

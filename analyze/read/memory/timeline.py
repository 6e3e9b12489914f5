"""Memory timelines of the PyTorch profiler, in the two forms that hold numbers.

``raw.json`` lists every change as ``[time_ns, action, bytes, category]``, with time -1 for
what was there before; ``json`` holds a list of times and, for each of them, the bytes of all
categories. Files may be large, so a part is read at a time and only sums are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import Message, Text, message
from ..byte_source import ByteSource
from ..files import DAMAGED_JSON, InputFile
from ..json_borders import elements
from .moments import MemoryRecord, Moment

IntArray = npt.NDArray[np.int64]

_COLUMN_OF = (
    "parameters",
    "optimizer",
    "other",
    "other",
    "activations",
    "gradients",
    "other",
    "other",
)
"""Where the profiler's categories go: parameter, optimizer state, input, temporary, activation,
gradient, detail of autograd, and none."""
_NO_CATEGORY = 7
_COUNT = len(_COLUMN_OF)
_EVENT_WIDTH, _SIZES_WIDTH = 4, _COUNT + 1
_CHUNK_BYTES = 1 << 20
_MOST_BYTES = 16 << 20
"""A number or a row above this size is none: memory must stay bounded."""
_MOST_SIZE = 1 << 53
_SPACE = b" \t\r\n"
_NS_PER_US = 1000
_EXPORT_AGAIN = message("advice.export_again")


def read_events(file: InputFile) -> MemoryRecord:
    """Read a timeline of single changes.

    Raises:
        TraceFormatError: It is laid out differently, or holds no change.
    """
    with ByteSource(file) as source:
        text = _Text(source, file.label)
        text.open_list()
        totals = _Totals()
        for rows in text.rows(_EVENT_WIDTH):
            if ((rows[:, 3] < 0) | (rows[:, 3] >= _COUNT)).any():
                raise text.unreadable(message("defect.category"))
            totals.add_changes(rows)
        return totals.record(file.label, text.losses)


def read_sizes(file: InputFile) -> MemoryRecord:
    """Read a timeline of sizes over time.

    Raises:
        TraceFormatError: It is laid out differently, or holds no time.
    """
    with ByteSource(file) as source:
        text = _Text(source, file.label)
        text.open_list()
        text.open_list()
        times = text.numbers()
        text.open_list()
        totals = _Totals()
        before = 0
        for rows in text.rows(_SIZES_WIDTH):
            own = times[before : before + len(rows)]
            totals.add_sizes(own * _NS_PER_US, rows[: len(own), 1:])
            before += len(rows)
        losses = text.losses
        if before != len(times) and not losses:
            losses = [message("damage.times_and_rows", times=len(times), rows=before)]
        return totals.record(file.label, losses)


class _Totals:
    """Sums over the changes so far, and the moments that count."""

    def __init__(self) -> None:
        self._now: IntArray = np.zeros(_COUNT, dtype=np.int64)
        self._begin: tuple[int, IntArray] | None = None
        self._peak: tuple[int, IntArray] | None = None
        self._end_ns = 0
        self._lowest: IntArray = np.zeros(_COUNT, dtype=np.int64)

    def add_changes(self, rows: IntArray) -> None:
        """Take changes in their order; those of time -1 happened before the first."""
        change = np.zeros((len(rows), _COUNT), dtype=np.int64)
        change[np.arange(len(rows)), rows[:, 3]] = rows[:, 2]
        totals = self._now + np.cumsum(change, axis=0)
        is_before = rows[:, 0] < 0
        if self._begin is None and not is_before.all():
            first = int(np.argmin(is_before))
            at_first = totals[first - 1] if first else self._now
            self._begin = (int(rows[first, 0]), at_first.copy())
        begin_ns = self._begin[0] if self._begin else 0
        self._add(np.where(is_before, begin_ns, rows[:, 0]), totals)

    def add_sizes(self, time: IntArray, totals: IntArray) -> None:
        """Take the sizes of all categories at some times."""
        if self._begin is None and len(time):
            self._begin = (int(time[0]), totals[0].copy())
        self._add(time, totals)

    def record(self, where: str, losses: list[Message]) -> MemoryRecord:
        """Return the moments.

        Raises:
            TraceFormatError: Nothing was added.
        """
        if self._peak is None:
            what = message("refused.several", items=[message("refused.no_memory_change"), *losses])
            raise TraceFormatError(what, where=where, remedy=_EXPORT_AGAIN)
        begin_ns, begin = self._begin or (0, self._now)
        # What was there before the first change has the time of the first change.
        peak_ns, peak = max(self._peak[0], begin_ns), self._peak[1]
        highest = int(peak.sum())
        moments = [
            _moment(begin_ns, begin, int(begin.sum())),
            _moment(peak_ns, peak, highest),
            _moment(max(self._end_ns, peak_ns), self._now, highest),
        ]
        notes: list[Limit] = [message("missing.end_of_file", damage=loss) for loss in losses]
        if peak[_NO_CATEGORY] and highest:
            share = float(peak[_NO_CATEGORY]) / highest
            notes.append(message("scope.no_category", share=share))
        if (self._lowest < 0).any():
            notes.append(message("assumed.freed_unlisted"))
        return MemoryRecord(moments, [*notes, message("unknown.timeline_headroom")])

    def _add(self, time: IntArray, totals: IntArray) -> None:
        if not len(totals):
            return
        whole = totals.sum(axis=1)
        place = int(whole.argmax())
        if self._peak is None or whole[place] > self._peak[1].sum():
            self._peak = (int(time[place]), totals[place].copy())
        self._now = totals[-1].copy()
        self._end_ns = int(time[-1])
        self._lowest = np.minimum(self._lowest, totals.min(axis=0))


def _moment(time_ns: int, totals: IntArray, peak_bytes: int) -> Moment:
    by_category = dict.fromkeys(_COLUMN_OF, 0)
    for column, size in zip(_COLUMN_OF, totals.tolist(), strict=True):
        by_category[column] += max(size, 0)
    return Moment(
        time_ns=time_ns,
        allocated_bytes=max(int(totals.sum()), 0),
        peak_bytes=max(peak_bytes, 0),
        by_category=by_category,
    )


class _Text:
    """A JSON text of nested lists of integers, read from its start to its end.

    Args:
        source: Where the text comes from.
        where: What an error names.
    """

    def __init__(self, source: ByteSource, where: str) -> None:
        self._source, self._where = source, where
        self._text = b""
        self.losses: list[Message] = []
        """What could not be read, one clause each."""

    def open_list(self) -> None:
        """Go on behind the bracket that opens a list.

        Raises:
            TraceFormatError: Something else stands there.
        """
        self._skip(_SPACE + b",")
        if not self._text.startswith(b"["):
            raise self.unreadable(message("defect.no_list"))
        self._text = self._text[1:]

    def numbers(self) -> IntArray:
        """Return the numbers up to the end of the list.

        Raises:
            TraceFormatError: Something else is among them.
        """
        parts: list[IntArray] = []
        while b"]" not in self._text:
            border = self._text.rfind(b",") + 1
            if border:
                parts.append(self._array(self._text[:border].rstrip(_SPACE + b","), 1)[:, 0])
                self._text = self._text[border:]
            if not self._more():
                raise self.unreadable(message("defect.ends_early"))
        own, _, self._text = self._text.partition(b"]")
        parts.append(self._array(own, 1)[:, 0])
        return np.concatenate(parts)

    def rows(self, width: int) -> Iterator[IntArray]:
        """Yield the lists of ``width`` numbers up to the end of the list, many at a time.

        Raises:
            TraceFormatError: Something else is among them.
        """
        while True:
            borders = elements(self._text)
            end = borders.ends[-1] if borders.ends else 0
            if end:
                yield self._array(self._text[:end].lstrip(_SPACE + b","), width)
            self._text = self._text[end:]
            if borders.array_end is not None:
                return
            if not self._more():
                self.losses.append(message("damage.ends_early", read_bytes=self._source.offset))
                return

    def unreadable(self, reason: Text) -> TraceFormatError:
        """Return the error for a text that is laid out differently."""
        return TraceFormatError(
            message("refused.memory_timeline", reason=reason),
            where=self._where,
            remedy=_EXPORT_AGAIN,
        )

    def _array(self, text: bytes, width: int) -> IntArray:
        layout: Any = list[int] if width == 1 else list[tuple[(int,) * width]]  # type: ignore[misc]
        try:
            values: Any = msgspec.json.decode(b"[%b]" % text, type=layout)
        except DAMAGED_JSON as error:
            raise self.unreadable(str(error)) from error
        flat: Iterable[int] = values if width == 1 else chain.from_iterable(values)
        try:
            array = np.fromiter(flat, np.int64, len(values) * width).reshape(-1, width)
        except OverflowError as error:
            raise self.unreadable(message("defect.large_number")) from error
        if width > 1 and (np.abs(array[:, 1:]) > _MOST_SIZE).any():
            raise self.unreadable(message("defect.large_size"))
        return array

    def _skip(self, characters: bytes) -> None:
        self._text = self._text.lstrip(characters)
        while not self._text and self._more():
            self._text = self._text.lstrip(characters)

    def _more(self) -> bool:
        """Read on; return whether there was more.

        Raises:
            TraceFormatError: What was read so far has no end.
        """
        if len(self._text) > _MOST_BYTES:
            raise self.unreadable(message("defect.endless_row"))
        piece = self._source.read(max(_CHUNK_BYTES, len(self._text)))
        self._text += piece
        return bool(piece)

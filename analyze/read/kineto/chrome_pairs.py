"""Chrome traces of begin and end events (``ph`` B and E), rewritten to complete ones.

An end closes the event that began last on its thread and is still open; of asynchronous
ones (b and e), as some write the work of a device, the one with its id. Which ends
close which begins is found in a first reading, of which only numbers are kept; a second
one writes a temporary file of complete events, so the categories decide what its events
are. Traces that are a bare list, of which the last bracket may be missing, are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import message
from ..file_limits import left_out_files
from ..files import InputFile
from ..kernel_names import CATEGORY_OF_EVENT
from ..scratch import Scratch
from .events import decode
from .rewritten import EventWriter
from .stamps import decimal_texts, microseconds_to_ns
from .stream import JsonEvents

IntArray = npt.NDArray[np.int64]

_KNOWN = frozenset({*CATEGORY_OF_EVENT, "cpu_op", "operator", "user_annotation"})
"""Categories that say what an event is."""
_PAIRED = re.compile(rb'"ph"\s*:\s*"[BEbe]"')


class _Event(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    args: Any = None
    id: Any = None
    id2: Any = None
    scope: Any = None

    @property
    def is_mark(self) -> bool:
        """Return whether it begins or ends something: of asynchronous ones what a device does."""
        is_async = self.ph in ("b", "e") and str(self.cat).lower() in CATEGORY_OF_EVENT
        return is_async or self.ph in ("B", "E")

    @property
    def line(self) -> tuple[str, ...]:
        """Return what an event has in common with its partner: its thread, or its category and id.

        An id is that of the whole file, or, as ``local``, of the process.
        """
        if self.ph in ("B", "E"):
            return str(self.pid), str(self.tid)
        ids = self.id2 if isinstance(self.id2, dict) else {"global": self.id}
        of_file = ids.get("global")
        own = ("", str(of_file)) if of_file is not None else (str(self.pid), str(ids.get("local")))
        return str(self.cat), str(self.scope), *own


class _Complete(msgspec.Struct, gc=False, omit_defaults=True):
    ph: str
    cat: Any
    name: Any
    pid: Any
    tid: Any
    ts: msgspec.Raw
    dur: msgspec.Raw
    args: Any = None


_EVENT = msgspec.json.Decoder(_Event)


def complete_pairs(
    files: Sequence[InputFile], scratch: Scratch
) -> tuple[list[InputFile], list[Limit]]:
    """Return the files with begin and end events joined; other files stay as they are.

    Args:
        files: Files recognised as Kineto JSON.
        scratch: Where rewritten files go.

    Returns:
        The files, and a sentence for each file with events that have no partner, or that
        is cut off.

    Raises:
        TraceFormatError: No file is left: they cannot be decoded, their time stamps cannot be
            read, or no event has a category that we know.
    """
    found: list[InputFile] = []
    limits: list[Limit] = []
    errors: list[TraceFormatError] = []
    for file in files:
        try:
            found.append(_complete(file, scratch, limits))
        except TraceFormatError as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    return found, [*limits, *left_out_files(errors)]


def _complete(file: InputFile, scratch: Scratch, limits: list[Limit]) -> InputFile:
    """Return the file with its pairs joined, if its first part has some.

    Raises:
        TraceFormatError: As ``join_pairs``.
    """
    head = file.head().lstrip()
    if head[:1] not in (b"{", b"[") or not _PAIRED.search(head):
        return file
    return join_pairs(file, scratch.new_file(), limits)


def join_pairs(file: InputFile, target: Path, limits: list[Limit]) -> InputFile:
    """Return a file with its pairs joined, wherever they are; itself where it has none.

    Args:
        file: A file recognised as Kineto JSON.
        target: A new file, which gets the events.
        limits: Gets what could not be joined.

    Raises:
        TraceFormatError: It cannot be decoded, a time stamp is no number, or no event has a
            category that we know.
    """
    marks = _Marks()
    stream = JsonEvents(file, _Event)
    for events in stream.batches():
        marks.add(events, file.label)
    if not marks.count:
        return file
    if not marks.is_known:
        raise TraceFormatError(
            message("refused.no_known_category"),
            where=file.label,
            remedy=message("advice.categories"),
        )
    pairs = marks.pairs()
    writer = EventWriter(target)
    again = JsonEvents(file, msgspec.Raw)
    joiner = _Joiner(pairs)
    for texts in again.batches():
        writer.write(joiner.rewritten(texts))
    writer.finish(again.header)
    if pairs.alone:
        limits.append(message("missing.lone_marks", file=file.name, count=pairs.alone))
    limits += [message("missing.in_file", file=file.name, loss=loss) for loss in stream.losses]
    return InputFile(file.label, writer.path)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Which begins and ends belong together; events are named by their places in the file."""

    is_mark: npt.NDArray[np.bool_]
    """Whether each event is a begin or an end."""
    partner: IntArray
    """Place of the partner of each event, -1 if it has none."""
    dur: IntArray
    """Duration of each pair at the place of its begin, ns."""
    alone: int


class _Marks:
    """The begin and end events of a file as numbers, in the order of the file."""

    def __init__(self) -> None:
        self.is_known = False
        self.count = 0
        self._lines: dict[tuple[str, ...], int] = {}
        self._count = 0
        self._all: list[IntArray] = []
        self._timed: list[tuple[IntArray, IntArray, IntArray, npt.NDArray[np.bool_]]] = []

    def add(self, events: Sequence[_Event], where: str) -> None:
        """Take a batch of events.

        Raises:
            TraceFormatError: A time stamp is no number.
        """
        self.is_known |= any(str(event.cat).lower() in _KNOWN for event in events)
        at = [place for place, event in enumerate(events) if event.is_mark]
        self.count += len(at)
        self._all.append(np.array(at, dtype=np.int64) + self._count)
        texts = decimal_texts([events[place].ts for place in at])
        timed = [place for place, text in zip(at, texts, strict=True) if text]
        chosen = [events[place] for place in timed]
        line = [self._lines.setdefault(event.line, len(self._lines)) for event in chosen]
        self._timed.append(
            (
                np.array(timed, dtype=np.int64) + self._count,
                np.array(line, dtype=np.int64),
                microseconds_to_ns([text for text in texts if text], where),
                np.array([event.ph in ("B", "b") for event in chosen], dtype=bool),
            )
        )
        self._count += len(events)

    def pairs(self) -> _Pairs:
        """Return the pairs of all events."""
        place, thread, time, is_begin = (
            np.concatenate(parts) for parts in zip(*self._timed, strict=True)
        )
        begin, end = pair_positions(thread, time, is_begin)
        marks = np.concatenate(self._all)
        is_mark = np.zeros(self._count, dtype=bool)
        is_mark[marks] = True
        partner = np.full(self._count, -1, dtype=np.int64)
        partner[place[begin]], partner[place[end]] = place[end], place[begin]
        dur = np.zeros(self._count, dtype=np.int64)
        dur[place[begin]] = time[end] - time[begin]
        return _Pairs(is_mark, partner, dur, len(marks) - 2 * len(begin))


class _Joiner:
    """Rewrites events in the order of the file; of a pair, what comes first waits for the other.

    Args:
        pairs: What belongs together.
    """

    def __init__(self, pairs: _Pairs) -> None:
        self._pairs = pairs
        self._waiting: dict[int, _Event] = {}
        self._count = 0

    def rewritten(self, texts: Sequence[msgspec.Raw]) -> Iterator[bytes]:
        """Yield the events of a batch that are complete, and the pairs that end in it."""
        places = slice(self._count, self._count + len(texts))
        is_mark, partner = (
            column[places].tolist() for column in (self._pairs.is_mark, self._pairs.partner)
        )
        # Where a file is damaged, the events end earlier than its texts: the rest is among its losses.
        events = zip(texts, is_mark, partner, strict=False)
        for place, (text, is_paired, other) in enumerate(events, self._count):
            if not is_paired:
                yield bytes(text)
            elif other >= 0:
                yield from self._joined(place, other, bytes(text))
        self._count += len(texts)

    def _joined(self, place: int, partner: int, text: bytes) -> Iterator[bytes]:
        event = decode(_EVENT, text, "")
        other = self._waiting.pop(partner, None)
        if other is None:
            self._waiting[place] = event
            return
        is_begin = event.ph in ("B", "b")
        begin, end = (event, other) if is_begin else (other, event)
        ns = int(self._pairs.dur[place if is_begin else partner])
        yield msgspec.json.encode(
            _Complete(
                "X",
                begin.cat,
                begin.name,
                begin.pid,
                begin.tid,
                begin.ts,
                _microseconds(ns),
                _arguments(begin, end),
            )
        )


def pair_positions(
    thread: IntArray, time: IntArray, is_begin: npt.NDArray[np.bool_]
) -> tuple[IntArray, IntArray]:
    """Return the positions of the begins and of the ends that close them.

    On the time line of one thread a begin opens a level and its end closes the same one, so
    that in the order of levels, then of time, the two stand side by side. Events of one
    instant keep their order.
    """
    order = np.lexsort((time, thread))
    thread, begins = thread[order], is_begin[order]
    level = np.cumsum(np.where(begins, 1, -1)) + ~begins
    place = np.lexsort((level, thread))
    first, second = place[:-1], place[1:]
    is_pair = (thread[first] == thread[second]) & (level[first] == level[second])
    is_pair &= begins[first] & ~begins[second]
    return order[first[is_pair]], order[second[is_pair]]


def _microseconds(ns: int) -> msgspec.Raw:
    return msgspec.Raw(f"{ns // 1000}.{ns % 1000:03d}".encode())


def _arguments(begin: _Event, end: _Event) -> dict[str, Any] | None:
    """Return the arguments of both; what the end says comes last."""
    both = [event.args for event in (begin, end) if isinstance(event.args, dict)]
    return {key: value for args in both for key, value in args.items()} or None

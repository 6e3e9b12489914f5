"""The events of one Kineto file in batches, of which one is held at a time.

A batch is cut at a border that is guessed and then proved: if the text before it,
between ``[`` and ``]``, is one JSON array, then no string and no object was open
there, so it lies between two events. Where the guess fails, or an event has to be
repaired, the brackets of the piece are counted instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Generic, TypeVar, cast

import msgspec

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import Message, message
from ..byte_source import ByteSource
from ..files import InputFile
from ..json_borders import elements, find_array
from ..reading import OnBytes, ignore_bytes
from .events import QUICK_EVENT, AnyEvent, Event, KinetoHeader, decode, decode_header
from .stamps import EXPORT_AGAIN

CHUNK_BYTES = 1 << 20
"""Text that is decoded at once. Smaller pieces cost more calls, larger ones leave the caches."""

_MOST_BYTES = 16 << 20
"""An event, or a header, above this size is refused: memory must stay bounded."""
_HEADER_BYTES = 1 << 18
"""Text that is read at first: most headers are shorter, so that the first batch is no larger."""
_MOST_ODD = 100
"""Events that may be left out before it counts whether they are the most of the file."""
_MOST_DAMAGED_FRAC = 0.1
"""Damaged places for each event, above which a file is refused."""
_EVENT_BORDER = re.compile(rb'\}\s*,\s*\{\s*"(?:ph|cat|name|pid|tid|ts)"')
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_GUESS_BYTES = (1 << 12, 1 << 16)
_GUESSES = (re.compile(rb'\}\s*,\s*(?=\{\s*"ph")'), re.compile(rb"\}\s*,\s*(?=\{)"))
_SPACE = b" \t\r\n"
_NOTHING, _COMMA = re.compile(rb""), re.compile(rb"\s*,\s*")
_BARE_LIST = b'{"traceEvents":'
"""What stands before the events where a file is the list of them alone."""

_DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_Item = TypeVar("_Item")


class JsonEvents(Generic[_Item]):
    """Reads one file once, from its start to its end.

    The list form without an object around it is read too; its last bracket may be missing.

    Args:
        file: A file that was recognised as Kineto JSON.
        layout: What each event is decoded to.
        quick: What most files' events can be decoded to as well, and faster.
        chunk_bytes: Uncompressed text to decode at once.
        on_bytes: Told after each piece how many more bytes of the file were read.
    """

    def __init__(
        self,
        file: InputFile,
        layout: type[_Item],
        *,
        quick: Sequence[Any] = (),
        chunk_bytes: int = CHUNK_BYTES,
        on_bytes: OnBytes = ignore_bytes,
    ) -> None:
        self._file = file
        self._batches: list[msgspec.json.Decoder[list[_Item]]] = [
            msgspec.json.Decoder(list[each])  # type: ignore[valid-type]
            for each in (*quick, layout)
        ]
        self._quick_events = [msgspec.json.Decoder(each) for each in quick]
        self._event = msgspec.json.Decoder(layout)
        self._is_bare = False
        self._chunk_bytes = chunk_bytes
        self._on_bytes = on_bytes
        self._has_before = False
        self.header = KinetoHeader()
        """What stands around the events; complete once all batches were taken."""
        self.losses: list[Limit] = []
        """What could not be read; complete likewise."""
        self.is_cut = False
        """True where the file ends before its events do; likewise."""
        self._count = 0
        self._odd = 0
        self._damaged = 0
        self._damage: TraceFormatError | None = None
        """The first one."""
        self._is_lost = False
        """True where it is not known at which event the text begins."""

    def batches(self) -> Iterator[list[_Item]]:
        """Yield all whole events in their order.

        Raises:
            TraceFormatError: The file is not laid out as a Kineto trace, is damaged
                otherwise than by being cut off, or has an event of absurd size.
        """
        with ByteSource(self._file) as source:
            before, text = self._up_to_events(source)
            behind: bytes | None = None
            reported = 0
            while behind is None:
                more = source.read(max(self._chunk_bytes, len(text)))
                self._on_bytes(source.position - reported)
                reported = source.position
                events, text, behind = self._take(text, more)
                is_last = not more
                # Text and events are freed before the next piece takes the same memory.
                del more
                if events:
                    self._count += len(events)
                    yield events
                del events
                if self._may_be_lost(text, is_last=is_last):
                    continue
                if is_last:
                    break
                self._refuse_above_limit(
                    len(text), message("defect.large_event", most_bytes=_MOST_BYTES)
                )
            self._finish(source, before, text, behind)

    def _may_be_lost(self, text: bytes, *, is_last: bool) -> bool:
        """Return whether what is left holds more than one event, because a quote too many hides borders."""
        if not is_last and len(text) < _MOST_BYTES // 2:
            return False
        border = _EVENT_BORDER.search(text)
        # A border outside of strings belongs to what is nested; inside of one it cannot be, as the
        # quotes of a key would have ended the string.
        if border is None or _ESCAPED.sub(b"", text[: border.start()]).count(b'"') % 2 == 0:
            return False
        self._lose(self._unreadable(message("defect.no_end_of_event", text=repr(text[:40]))))
        return True

    def _up_to_events(self, source: ByteSource) -> tuple[bytes, bytes]:
        """Return the text up to the bracket that opens the events, and what was read behind it."""
        text = b""
        while more := source.read(max(_HEADER_BYTES, len(text))):
            text += more
            if text.lstrip(_SPACE).startswith(b"["):
                self._is_bare = True
                return _BARE_LIST + b"[", text.lstrip(_SPACE)[1:]
            begin = find_array(text, "traceEvents")
            if begin is not None:
                return text[:begin], text[begin:]
            self._refuse_above_limit(
                len(text), message("defect.large_header", most_bytes=_MOST_BYTES)
            )
        raise self._unreadable(
            message("defect.cut_before_events")
            if source.ends_early
            else message("defect.no_events")
        )

    def _take(self, text: bytes, more: bytes) -> tuple[list[_Item], bytes, bytes | None]:
        """Return whole events, the text behind them, and what stands behind the array if it ends.

        Args:
            text: What is left of the piece before.
            more: The next piece, nothing at the end of the file.
        """
        comma = _COMMA.match(text) if self._has_before else _NOTHING.match(text)
        end = _guess_border(more)
        if comma and end is not None:
            pieces = (b"[", memoryview(text)[comma.end() :], memoryview(more)[:end], b"]")
            events = self._decoded(b"".join(pieces))
            if events is not None:
                self._has_before = True
                return events, more[end:], None
        return self._take_exactly(text + more)

    def _decoded(self, array: bytes) -> list[_Item] | None:
        """Return the events of a text that is one array, None where it is none, or damaged."""
        for at, decoder in enumerate(self._batches):
            try:
                events = decoder.decode(array)
            except _DAMAGE:
                continue
            # What failed once does so again: the file has events of another form.
            del self._batches[:at]
            return events
        return None

    def _take_exactly(self, text: bytes) -> tuple[list[_Item], bytes, bytes | None]:
        if self._is_lost:
            found = _GUESSES[1].search(text)
            if found is None:
                return [], text[-_GUESS_BYTES[0] :], None
            text, self._is_lost = text[found.start() + 1 :], False
        borders = elements(text)
        events: list[_Item] = []
        begin = 0
        for end in borders.ends:
            try:
                event = self._decode(text[begin:end].strip(_SPACE))
            except TraceFormatError as error:
                self._lose(error)
                more, rest, behind = self._take_exactly(text[begin + 1 :])
                return [*events, *more], rest, behind
            if event is not None:
                events.append(event)
            begin = end
        if borders.array_end is None:
            rest = text[begin:].lstrip(_SPACE)
            return events, rest[:1] + rest[1:].lstrip(_SPACE), None
        rest = text[begin : borders.array_end].strip(_SPACE)
        # A comma behind the last event, as scripts leave it, hides none.
        if rest and rest != b",":
            self._lose(self._unreadable(message("defect.event_no_object", text=repr(rest[:40]))))
            self._is_lost = False
        return events, b"", text[borders.array_end + 1 :]

    def _lose(self, error: TraceFormatError) -> None:
        """Count damage behind which the next event is looked for; little of it refuses no file."""
        self._damage = self._damage or error
        self._damaged += 1
        self._is_lost = True
        if self._damaged > _MOST_ODD and self._damaged > self._count * _MOST_DAMAGED_FRAC:
            raise error

    def _decode(self, text: bytes) -> _Item | None:
        """Decode one event, with the comma that parts it from the one before.

        One that is JSON but laid out otherwise is left out and counted.
        """
        if self._has_before:
            comma = _COMMA.match(text)
            if comma is None:
                raise self._unreadable(message("defect.no_comma", text=repr(text[:40])))
            text = text[comma.end() :]
        self._has_before = True
        for decoder in self._quick_events:
            with suppress(*_DAMAGE):
                return cast(_Item, decoder.decode(text))
        try:
            return decode(self._event, text, self._file.label)
        except TraceFormatError as error:
            # Text that is no JSON is damage, and what follows it could be anything.
            is_json = isinstance(error.__cause__, msgspec.ValidationError)
            self._odd += 1
            if not is_json or (self._odd > _MOST_ODD and self._odd > self._count):
                raise
            return None

    def _finish(self, source: ByteSource, before: bytes, torn: bytes, behind: bytes | None) -> None:
        """Read what follows the events; note what of the file is missing.

        Args:
            source: Where the file was read from.
            before: The header before the events, with the bracket that opens them.
            torn: The start of an event that does not end.
            behind: What was read behind the events, None where they do not end.
        """
        self._finish_header(source, before, torn, behind)
        if source.is_followed:
            self.losses.append(message("missing.second_document"))

    def _finish_header(
        self, source: ByteSource, before: bytes, torn: bytes, behind: bytes | None
    ) -> None:
        if self._damage is not None:
            if self._damaged > max(self._count, 1) * _MOST_DAMAGED_FRAC:
                raise self._damage
            self.losses.append(message("missing.damaged_places", count=self._damaged))
        if self._odd:
            self.losses.append(message("missing.unreadable_events", count=self._odd))
        if self._is_bare and behind is None and not torn.strip(b", \t\r\n"):
            return
        if behind is not None:
            behind += source.read(_MOST_BYTES)
            behind = (
                self._without_second(b"{[" + behind)[2:] if not self._is_bare else behind + b"}"
            )
            self._refuse_above_limit(
                len(behind), message("defect.large_header", most_bytes=_MOST_BYTES)
            )
            whole = decode_header(before + b"]" + behind, self._file.label, self.losses)
            if whole is not None:
                self.header = whole
                if source.ends_early:
                    self.losses.append(message("missing.checksum"))
                return
        self.header = decode_header(before + b"]}", self._file.label, self.losses) or KinetoHeader()
        self.is_cut = behind is None
        size_bytes, whole_bytes = source.offset, source.offset - len(torn)
        if behind is not None:
            self.losses.append(message("missing.header_after_events", size_bytes=size_bytes))
        elif source.ends_early:
            self.losses.append(
                message("missing.cut_gzip", whole_bytes=whole_bytes, size_bytes=size_bytes)
            )
        else:
            self.losses.append(
                message("missing.cut_text", whole_bytes=whole_bytes, size_bytes=size_bytes)
            )

    def _without_second(self, text: bytes) -> bytes:
        """Return the end of a document without what follows it.

        Two processes that write to one path leave two documents in it, or the tail of a longer one.
        """
        whole = elements(text.replace(b"{[", b'{"":[]', 1)).ends
        end = whole[0] - 4 if whole else len(text)
        if text[end:].strip(_SPACE + b"\0"):
            self.losses.append(message("missing.second_document"))
        return text[:end]

    def _refuse_above_limit(self, size: int, reason: Message) -> None:
        if size >= _MOST_BYTES:
            raise self._unreadable(reason)

    def _unreadable(self, reason: Message) -> TraceFormatError:
        return TraceFormatError(
            message("refused.kineto", reason=reason),
            where=self._file.label,
            remedy=EXPORT_AGAIN,
        )


class EventStream(JsonEvents[AnyEvent]):
    """Reads the events of one file with what Kineto tells of those that are complete.

    Args:
        file: A file that was recognised as Kineto JSON.
        chunk_bytes: Uncompressed text to decode at once.
        on_bytes: Told after each piece how many more bytes of the file were read.
    """

    def __init__(
        self,
        file: InputFile,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        on_bytes: OnBytes = ignore_bytes,
    ) -> None:
        super().__init__(
            file, Event, quick=[QUICK_EVENT], chunk_bytes=chunk_bytes, on_bytes=on_bytes
        )


def _guess_border(text: bytes) -> int | None:
    """Return where an event near the end of the text seems to end, so that another follows."""
    for size, pattern in product(_GUESS_BYTES, _GUESSES):
        found = [match.start() for match in pattern.finditer(text, max(len(text) - size, 0))]
        if found:
            return found[-1] + 1
    return None

"""Chrome traces of begin and end events (``ph`` B and E), rewritten to complete ones.

An end closes the event that began last on its thread and is still open. A rewritten
file is held in memory and read like one of complete events, so the categories decide
what its events are. Traces that are a bare list, of which the last bracket may be
missing, become the object that holds such a list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import TraceFormatError

from .detect import DAMAGED_JSON, InputFile
from .kernel_names import CATEGORY_OF_EVENT
from .kineto_events import microseconds_to_ns

IntArray = npt.NDArray[np.int64]

_KNOWN = frozenset({*CATEGORY_OF_EVENT, "cpu_op", "operator", "user_annotation"})
"""Categories that say what an event is."""
_PAIRED = re.compile(rb'"ph"\s*:\s*"[BE]"')


class _Event(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    args: Any = None


class _Complete(msgspec.Struct, gc=False, omit_defaults=True):
    ph: str
    cat: Any
    name: Any
    pid: Any
    tid: Any
    ts: msgspec.Raw
    dur: msgspec.Raw
    args: Any = None


def complete_pairs(files: Sequence[InputFile]) -> tuple[list[InputFile], list[str]]:
    """Return the files with begin and end events joined; other files stay as they are.

    A file that cannot be decoded stays as it is too, and fails where it is read.

    Returns:
        The files, and a sentence for each file with events that have no partner.

    Raises:
        TraceFormatError: No file is left: their time stamps cannot be read, or no event
            has a category that we know.
    """
    found: list[InputFile] = []
    limits: list[str] = []
    errors: list[TraceFormatError] = []
    for file in files:
        try:
            one, alone = _complete(file)
        except TraceFormatError as error:
            errors.append(error)
            continue
        found.append(one)
        if alone:
            limits.append(
                f"The file {file.name} has {alone} begin or end events without a partner: left out."
            )
    if errors and not found:
        raise errors[0]
    return found, [*limits, *(f"Left out: {error}." for error in errors)]


def _complete(file: InputFile) -> tuple[InputFile, int]:
    """Return the file with its pairs joined, and how many events are alone.

    Raises:
        TraceFormatError: A time stamp is no number, or no event has a category that we know.
    """
    head = file.head().lstrip()
    is_list = head.startswith(b"[")
    if not is_list and not (head.startswith(b"{") and _PAIRED.search(head)):
        return file, 0
    content = _as_object(file.read()) if is_list else file.read()
    try:
        header = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        texts = msgspec.json.decode(header.get("traceEvents", b"[]"), type=list[msgspec.Raw])
        events = msgspec.json.decode(header.get("traceEvents", b"[]"), type=list[_Event])
    except DAMAGED_JSON:
        return file, 0
    if not any(str(event.cat).lower() in _KNOWN for event in events):
        raise TraceFormatError(
            "holds no event of a category that we know",
            where=file.label,
            remedy="Give its events those of the PyTorch profiler: kernel, cpu_op, user_annotation",
        )
    at = np.array([i for i, e in enumerate(events) if e.ph in ("B", "E")], dtype=np.int64)
    joined, alone = _joined([events[i] for i in at.tolist()], file.label)
    is_kept = np.ones(len(events), dtype=bool)
    is_kept[at] = False
    kept = [text for text, keep in zip(texts, is_kept.tolist(), strict=True) if keep]
    header["traceEvents"] = msgspec.Raw(msgspec.json.encode([*kept, *joined]))
    return replace(file, content=msgspec.json.encode(header)), alone


def _as_object(events: bytes) -> bytes:
    """Return a list of events as a whole trace; its last bracket may be missing."""
    events = events.strip()
    if not events.endswith(b"]"):
        events = events.rstrip(b", \r\n\t") + b"]"
    return b'{"traceEvents":' + events + b"}"


def _joined(events: Sequence[_Event], where: str) -> tuple[list[_Complete], int]:
    """Return the complete events of all pairs, and how many events have no partner.

    Raises:
        TraceFormatError: A time stamp is no number.
    """
    timed = [event for event in events if _text(event.ts)]
    time = microseconds_to_ns([_text(event.ts) for event in timed], where)
    threads: dict[tuple[str, str], int] = {}
    thread = [threads.setdefault((str(e.pid), str(e.tid)), len(threads)) for e in timed]
    begin, end = pair_positions(
        np.array(thread, dtype=np.int64), time, np.array([e.ph == "B" for e in timed], dtype=bool)
    )
    dur = (time[end] - time[begin]).tolist()
    joined = [
        _Complete("X", b.cat, b.name, b.pid, b.tid, b.ts, _microseconds(ns), _arguments(b, e))
        for b, e, ns in (
            (timed[i], timed[j], ns)
            for i, j, ns in zip(begin.tolist(), end.tolist(), dur, strict=True)
        )
    ]
    return joined, len(events) - 2 * len(joined)


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


def _text(value: msgspec.Raw) -> bytes:
    text = bytes(value).strip(b'"')
    return b"" if text == b"null" else text


def _microseconds(ns: int) -> msgspec.Raw:
    return msgspec.Raw(f"{ns // 1000}.{ns % 1000:03d}".encode())


def _arguments(begin: _Event, end: _Event) -> dict[str, Any] | None:
    """Return the arguments of both; what the end says comes last."""
    both = [event.args for event in (begin, end) if isinstance(event.args, dict)]
    return {key: value for args in both for key, value in args.items()} or None

"""Traces of the Ascend profiler (CANN, torch_npu), rewritten so that calls launch the work of the device.

A launch is tied to its work by a flow: an ``s`` of category ``HostToDevice`` where the host launches, and an
``f`` with its id where each activity begins, on the same track at the same time. A second kind, ``async_npu``,
leads from the operator to the activity; the operator has returned by then where a queue launches for it::

    host     aten::mm                     X  pid 1    tid 1    ts 100
             s async_npu 7                   pid 1    tid 1    ts 100
    CANN     Node@launch                  X  pid 2    tid 9    ts 140
             s HostToDevice 81               pid 2    tid 9    ts 140
    device   MatMulV2                     X  pid 3    tid 5    ts 150
             f HostToDevice 81, f async_npu 7   pid 3    tid 5    ts 150
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ..files import InputFile
from ..scratch import Scratch
from .categories import ASCEND_CALL
from .rewritten import EventWriter
from .stream import JsonEvents

_SIGN = re.compile(
    rb'"(?:CANN|NPU|Ascend Hardware|HostToDevice|async_npu|async_task_queue|enqueue|dequeue)"'
    rb'|"Task Type"\s*:|"AscendCL@|"Node@'
)
_LAUNCH, _OPERATOR = "HostToDevice", "async_npu"
_QUEUE = ("enqueue", "dequeue")
_LEVELS = ("acl", "model", "node", "hccl", "runtime")
"""Layers of the library that a call can be of, in ``args``."""
_NOTHING = msgspec.Raw(b"")

_Place = tuple[str, str, str]
"""Process, track and time of an event, as text."""


class _Event(msgspec.Struct, gc=False, omit_defaults=True):
    ph: Any = None
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    id: Any = None
    args: Any = None


class _Flows:
    """Where the flows of one kind begin and end.

    Flows that begin together have one number, and so have those of one id, as where a graph is replayed.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self._of_id: dict[str, int] = {}
        self._of_place: dict[_Place, int] = {}
        self._ended: dict[_Place, str] = {}

    def add(self, event: _Event) -> None:
        """Take an end of a flow."""
        place, id_ = _place(event), str(event.id)
        if event.ph == "f":
            self._ended.setdefault(place, id_)
            return
        known = self._of_id.get(id_, self._of_place.get(place))
        if known is None:
            known, self._next = self._next, self._next + 2
        self._of_id.setdefault(id_, known)
        self._of_place.setdefault(place, known)

    def from_here(self, place: _Place) -> int | None:
        """Return the number of what begins at a place; None where nothing does."""
        return self._of_place.get(place)

    def to_here(self, place: _Place) -> int | None:
        """Return the number of the flow that ends at a place; None where none does, or its begin is unknown."""
        return self._of_id.get(self._ended.get(place, ""))


def with_ascend_launches(files: Sequence[InputFile], scratch: Scratch) -> list[InputFile]:
    """Return the files, those of the Ascend profiler with flows rewritten.

    Args:
        files: Files recognised as Kineto JSON.
        scratch: Where rewritten files go.

    Raises:
        TraceFormatError: A file of the Ascend profiler is damaged.
    """
    return [_rewritten(file, scratch) if _SIGN.search(file.head()) else file for file in files]


def _rewritten(file: InputFile, scratch: Scratch) -> InputFile:
    launches, operators = _Flows(1), _Flows(2)
    of_category = {_LAUNCH: launches, _OPERATOR: operators}
    calls: set[_Place] = set()
    for events in JsonEvents(file, _Event).batches():
        for event in events:
            if event.ph in ("s", "f") and (flows := of_category.get(str(event.cat))) is not None:
                flows.add(event)
            elif _is_call(event):
                calls.add(_place(event))
    writer, stream = EventWriter(scratch.new_file()), JsonEvents(file, _Event)
    for events in stream.batches():
        writer.write(map(msgspec.json.encode, _linked(events, launches, operators, calls)))
    writer.finish(stream.header)
    return InputFile(file.label, writer.path)


def _linked(
    events: Iterable[_Event], launches: _Flows, operators: _Flows, calls: set[_Place]
) -> Iterator[_Event]:
    """Yield events with the numbers that tie work to its launch and operator, and calls as such."""
    for event in events:
        place = _place(event)
        if event.ph == "s" and event.cat == _LAUNCH and place not in calls:
            event.ph, event.cat, event.name = "X", ASCEND_CALL, "launch"
            event.dur = msgspec.Raw(b"0")
            event.args = {"correlation": launches.from_here(place)}
        elif event.ph == "s" and event.cat == _OPERATOR:
            # Work of which no launch is known was launched by its operator.
            event.ph, event.cat, event.name = "X", ASCEND_CALL, "launch"
            event.dur = msgspec.Raw(b"0")
            event.args = {"correlation": operators.from_here(place)}
        elif _is_call(event):
            event.cat = ASCEND_CALL
            event.args = _with(event, correlation=launches.from_here(place))
        elif event.ph == "X" and event.cat == "cpu_op":
            number = operators.from_here(place)
            if number is not None:
                event.args = _with(event, **{"External id": number})
        elif event.ph == "X":
            launch, operator = launches.to_here(place), operators.to_here(place)
            if launch is not None or operator is not None:
                event.args = _with(
                    event,
                    correlation=operator if launch is None else launch,
                    **({} if operator is None else {"External id": operator}),
                )
        yield event


def _is_call(event: _Event) -> bool:
    """Return whether an event is a call of the host into the library, or into the queue before it."""
    if event.ph != "X":
        return False
    if event.cat in _QUEUE:
        return True
    args = event.args
    return not event.cat and isinstance(args, dict) and str(args.get("level")) in _LEVELS


def _with(event: _Event, **more: Any) -> dict[str, Any]:
    return {**(event.args if isinstance(event.args, dict) else {}), **more}


def _place(event: _Event) -> _Place:
    """Return where an event begins; one time is written in one way, whether it is text or a number."""
    ts = bytes(event.ts).strip(b'"').decode("ascii", "replace")
    if "." in ts and "e" not in ts.lower():
        ts = ts.rstrip("0").rstrip(".")
    return str(event.pid), str(event.tid), ts

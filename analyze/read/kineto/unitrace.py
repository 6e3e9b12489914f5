"""Traces of unitrace (Intel), rewritten so that calls launch the work of the device.

It writes calls of Level Zero and OpenCL as operators, and ties a launch to its work by a flow event: an
``s`` of category ``Flow_H2D_<id>_<rank>`` on the host, whose id the work has as an argument. Each such flow
becomes a call of no length with that id, and calls get the category of calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..files import InputFile
from ..scratch import Scratch
from .events import to_int
from .rewritten import EventWriter
from .stream import JsonEvents

_SIGN = re.compile(rb'"cat"\s*:\s*"(?:CL_)?Flow_H2D_\d')
_LAUNCH = re.compile(r"(?:CL_)?Flow_H2D_\d")
_CALL = re.compile(r"(?:zes?|cl|ur|pi)[A-Z]")
_CATEGORY = "xpu_driver"
_NOTHING = msgspec.Raw(b"")


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


def with_launches(files: Sequence[InputFile], scratch: Scratch) -> list[InputFile]:
    """Return the files, those of unitrace rewritten; one that cannot be decoded fails where it is read.

    Args:
        files: Files recognised as Kineto JSON.
        scratch: Where rewritten files go.

    Raises:
        TraceFormatError: A file of unitrace is damaged.
    """
    return [_rewritten(file, scratch) if _SIGN.search(file.head()) else file for file in files]


def _rewritten(file: InputFile, scratch: Scratch) -> InputFile:
    writer, stream = EventWriter(scratch.new_file()), JsonEvents(file, _Event)
    devices: dict[Any, int] = {}
    for events in stream.batches():
        writer.write(map(msgspec.json.encode, _linked(events, devices)))
    writer.finish(stream.header)
    return InputFile(file.label, writer.path)


def _linked(events: Sequence[_Event], devices: dict[Any, int]) -> Iterator[_Event]:
    """Yield the events of a batch; the process numbers of devices, near 2**32, become numbers from 0 on."""
    for event in events:
        name, category = str(event.name), str(event.cat)
        if event.ph == "s" and _LAUNCH.match(category):
            event.ph, event.cat, event.name = "X", _CATEGORY, "launch"
            event.dur, event.args = msgspec.Raw(b"0"), {"correlation": event.id}
        elif event.ph == "X" and category == "gpu_op" and isinstance(event.args, dict):
            device = devices.setdefault(event.pid, len(devices))
            of_launch = {"correlation": to_int(event.args.get("id")), "stream": event.tid}
            event.args = {**event.args, **of_launch, "device": device}
        elif event.ph == "X" and category == "cpu_op" and _CALL.match(name):
            event.cat = _CATEGORY
        yield event

"""Decoding one Kineto JSON file into typed events.

``ts`` and ``dur`` are kept as text, for a double would not hold them exactly.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from types import NoneType
from typing import Annotated, Any, ClassVar, TypeVar, Union, cast

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import message
from .stamps import EXPORT_AGAIN, LATEST_NS

_NO_VALUE = msgspec.Raw(b"")


class EventArgs(msgspec.Struct, gc=False):
    """The arguments that we use; their types differ between versions and vendors."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    external_id: Any = msgspec.field(default=None, name="External id")
    collective_name: Any = msgspec.field(default=None, name="Collective name")
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    grid: msgspec.Raw = _NO_VALUE
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    group_size: Any = msgspec.field(default=None, name="Group size")
    first_rank: Any = msgspec.field(default=None, name="Global rank start")
    rank_stride: Any = msgspec.field(default=None, name="Global rank stride")
    seq: Any = msgspec.field(default=None, name="Seq")
    source_rank: Any = msgspec.field(default=None, name="Src Rank")
    destination_rank: Any = msgspec.field(default=None, name="Dst Rank")
    merged_rank: Any = msgspec.field(default=None, name="rank")
    size_bytes: Any = msgspec.field(default=None, name="bytes")
    rate_gb_per_s: Any = msgspec.field(default=None, name="memory bandwidth (GB/s)")
    wait_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    wait_correlation: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    task_type: Any = msgspec.field(default=None, name="Task Type")
    input_dims: msgspec.Raw = msgspec.field(default=_NO_VALUE, name="Input Dims")
    input_types: msgspec.Raw = msgspec.field(default=_NO_VALUE, name="Input type")
    input_values: msgspec.Raw = msgspec.field(default=_NO_VALUE, name="Concrete Inputs")


class EventContent(msgspec.Struct, gc=False):
    """What an event holds; ``ts`` and ``dur`` are their JSON text, in microseconds."""

    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _NO_VALUE
    dur: msgspec.Raw = _NO_VALUE
    args: EventArgs | None = None


class Event(EventContent, gc=False):
    """An event of any phase."""

    ph: str = ""


class CompleteEvent(EventContent, gc=False, tag_field="ph", tag="X"):
    """An event of phase X, which has a length."""

    ph: ClassVar[str] = "X"


class OtherPhase(msgspec.Struct, gc=False):
    """An event of another phase, of which nothing is decoded."""

    ph: ClassVar[str] = ""
    cat: ClassVar[str] = ""


AnyEvent = Event | CompleteEvent | OtherPhase
_HALVES = frozenset("BEbe")
"""Phases of events that begin or end something."""
_PHASES = set(string.ascii_letters + "(,)") - {"X"}
_OTHERS = [
    msgspec.defstruct("_Other", [], bases=(OtherPhase,), tag_field="ph", tag=phase, gc=False)
    for phase in sorted(_PHASES)
]
_HALF_TYPES = frozenset(
    other for other, phase in zip(_OTHERS, sorted(_PHASES), strict=True) if phase in _HALVES
)
QUICK_EVENT: Any = Union[(CompleteEvent, *_OTHERS)]
"""What the events of most files can be decoded to, faster than to ``Event``."""


def any_half(events: Sequence[AnyEvent]) -> bool:
    """Return whether some event begins or ends something, which is read as a pair."""
    types = set(map(type, events))
    # Of events that were decoded quickly the type tells the phase.
    return not types.isdisjoint(_HALF_TYPES) or (
        Event in types and any(event.ph in _HALVES for event in events)
    )


class GroupConfig(msgspec.Struct):
    """One entry of ``distributedInfo.pg_config``."""

    pg_name: Any = None
    pg_desc: Any = None
    ranks: Any = None


class DistributedInfo(msgspec.Struct):
    """Who wrote the file."""

    backend: Any = None
    rank: Any = None
    world_size: Any = None
    pg_config: list[GroupConfig] | None = None


class DeviceProperties(msgspec.Struct):
    """One device of the host."""

    id: Any = None
    name: Any = None


_Base = Annotated[int, msgspec.Meta(ge=0, lt=LATEST_NS)]


class KinetoHeader(msgspec.Struct, rename="camel"):
    """What stands around the events; all other keys are skipped while decoding."""

    trace_events: list[msgspec.Raw] = []
    distributed_info: DistributedInfo | None = None
    device_properties: list[DeviceProperties] | None = None
    base_time_nanoseconds: _Base | None = None


_HEADER = msgspec.json.Decoder(KinetoHeader)
_NOT_FINITE = re.compile(rb"(:\s*)[-+]?(?:nan|inf|infinity|n/a)\b", re.IGNORECASE)
_SURROGATE = re.compile(
    rb"(\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2})|\\u[dD][89a-fA-F][\da-fA-F]{2}"
)
"""A pair of surrogates, which is one character, or a lone one, which is none."""
_BAD_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[\da-fA-F]{4})?')
"""A backslash with what it escapes; where it escapes nothing, as in a path of Windows, it is one itself."""
_CONTROL = bytes(code if code >= 0x20 else 0x20 for code in range(256))
"""Spaces for control characters, which JSON has outside of strings only, where they are spaces too."""
_Decoded = TypeVar("_Decoded")


def decode(decoder: msgspec.json.Decoder[_Decoded], text: bytes, where: str) -> _Decoded:
    """Decode JSON, and repair what profilers do write.

    Repaired are bad UTF-8, lone surrogates, non-finite numbers, control characters, and backslashes
    that escape nothing.

    Args:
        decoder: What the text holds.
        text: One JSON value.
        where: What an error names.

    Raises:
        TraceFormatError: It is not JSON, is cut off, or is not laid out as a Kineto trace.
    """
    try:
        return _decode_or_repair(decoder, text)
    except msgspec.DecodeError as error:
        raise _unreadable(error, where) from error


def decode_header(text: bytes, where: str, losses: list[Limit]) -> KinetoHeader | None:
    """Decode a file without its events; return None where the text is cut off.

    A key that is laid out otherwise is taken as absent; ``losses`` gets a note on it.

    Raises:
        TraceFormatError: It is not laid out as a Kineto trace, or lists events twice.
    """
    try:
        header = _decode_or_repair(_HEADER, text)
    except msgspec.ValidationError as error:
        readable = _readable_keys(text, losses)
        if readable is None:
            raise _unreadable(error, where) from error
        header = readable
    except msgspec.DecodeError:
        return None
    if header.trace_events:
        raise TraceFormatError(message("refused.events_twice"), where=where, remedy=EXPORT_AGAIN)
    return header


class _LooseHeader(msgspec.Struct, rename="camel"):
    """A header of which any key may be laid out otherwise."""

    trace_events: list[msgspec.Raw] = []
    distributed_info: msgspec.Raw = _NO_VALUE
    device_properties: msgspec.Raw = _NO_VALUE
    base_time_nanoseconds: msgspec.Raw = _NO_VALUE


class _InfoWithoutGroups(msgspec.Struct):
    backend: Any = None
    rank: Any = None
    world_size: Any = None


_LOOSE_HEADER = msgspec.json.Decoder(_LooseHeader)


def _readable_keys(text: bytes, losses: list[Limit]) -> KinetoHeader | None:
    """Return the keys of a header that can be read, None where it is no header at all."""
    try:
        loose = _decode_or_repair(_LOOSE_HEADER, text)
    except msgspec.DecodeError:
        return None

    def read(key: str, value: msgspec.Raw, layout: Any) -> Any:
        try:
            return msgspec.json.decode(value, type=layout) if value else None
        except (msgspec.DecodeError, RecursionError):
            losses.append(message("missing.header_key", key=key))
            return None

    info = read("distributedInfo.pg_config", loose.distributed_info, DistributedInfo | None)
    if info is None and loose.distributed_info:
        rest = read("distributedInfo", loose.distributed_info, _InfoWithoutGroups | None)
        if rest is not None:
            info = DistributedInfo(rest.backend, rest.rank, rest.world_size)
    properties = list[DeviceProperties] | None
    return KinetoHeader(
        trace_events=loose.trace_events,
        distributed_info=info,
        device_properties=read("deviceProperties", loose.device_properties, properties),
        base_time_nanoseconds=read(
            "baseTimeNanoseconds", loose.base_time_nanoseconds, _Base | None
        ),
    )


def _decode_or_repair(decoder: msgspec.json.Decoder[_Decoded], text: bytes) -> _Decoded:
    try:
        try:
            return decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            repaired = _NOT_FINITE.sub(rb"\1null", text.decode(errors="replace").encode())
            repaired = repaired.translate(_CONTROL)
            repaired = _BAD_ESCAPE.sub(lambda one: one[0] if one[1] else rb"\\", repaired)
            repaired = _SURROGATE.sub(lambda pair: pair[1] or rb"\ufffd", repaired)
            return decoder.decode(repaired)
    except RecursionError as error:
        raise msgspec.ValidationError("a value is nested too deeply") from error


def _unreadable(error: msgspec.DecodeError, where: str) -> TraceFormatError:
    return TraceFormatError(
        message("refused.kineto", reason=str(error)), where=where, remedy=EXPORT_AGAIN
    )


def to_int(value: object, default: int = -1, *, bits: int = 64) -> int:
    """Return an argument as a signed integer.

    Some versions write numbers as text; some write -1 as an unsigned number, which
    does not fit and becomes the default like anything else that is no integer.
    """
    if type(value) is not int:
        try:
            value = int(str(value), 0)
        except ValueError:
            return default
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else default


def to_integers(values: Sequence[object], *, bits: int = 64) -> npt.NDArray[np.int64]:
    """Return ``to_int`` of each value, -1 where it is no integer; fast where all are numbers."""
    kinds = set(map(type, values))
    if kinds <= {int, NoneType}:
        known = (
            [-1 if value is None else value for value in values] if NoneType in kinds else values
        )
        try:
            column = np.fromiter(cast(Sequence[int], known), np.int64, len(known))
        except OverflowError:
            pass
        else:
            limit = 1 << bits - 1
            return (
                column
                if bits == 64
                else np.where((column >= -limit) & (column < limit), column, -1)
            )
    return np.array([to_int(value, bits=bits) for value in values], dtype=np.int64)


def to_floats(values: Sequence[object]) -> npt.NDArray[np.float64]:
    """Return arguments as floats, NaN where one is no finite number."""
    found = np.fromiter(map(_to_float, values), np.float64, len(values))
    return np.where(np.isfinite(found), found, np.nan)


def _to_float(value: object) -> float:
    try:
        return value if type(value) is float else float(str(value))
    except ValueError:
        return float("nan")

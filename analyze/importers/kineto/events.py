"""Decoding one Kineto JSON file into typed events, and its times to exact nanoseconds.

Kineto writes stamps as decimal microseconds with up to three digits. A double of
the size of a Unix time in microseconds resolves 0.25 us only, so ``ts`` and ``dur``
are kept as text and turned to integers by decimal arithmetic: a stamp is as exact
as what the file says. ``baseTimeNanoseconds``, when present, is added.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import NoneType
from typing import Annotated, Any, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import TraceFormatError

_NO_VALUE = msgspec.Raw(b"")
_LATEST_NS = 4_600_000_000_000_000_000
"""Year 2115. A stamp and a time base below it add up within 64 bits of nanoseconds."""
EXPORT_AGAIN = "Export the trace again"
"""Remedy of a file that is not what the profiler writes."""


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


class Event(msgspec.Struct, gc=False):
    """One trace event; ``ts`` and ``dur`` hold their JSON text, in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _NO_VALUE
    dur: msgspec.Raw = _NO_VALUE
    args: EventArgs | None = None


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
    pg_count: Any = None
    pg_config: list[GroupConfig] | None = None


class DeviceProperties(msgspec.Struct):
    """One device of the host."""

    id: Any = None
    name: Any = None


_Base = Annotated[int, msgspec.Meta(ge=0, lt=_LATEST_NS)]


class KinetoHeader(msgspec.Struct, rename="camel"):
    """What stands around the events; all other keys are skipped while decoding."""

    trace_events: list[msgspec.Raw] = []
    distributed_info: DistributedInfo | None = None
    device_properties: list[DeviceProperties] | None = None
    base_time_nanoseconds: _Base | None = None


_HEADER = msgspec.json.Decoder(KinetoHeader)
_NOT_FINITE = re.compile(rb"(:\s*)[-+]?(?:nan|inf|infinity)\b", re.IGNORECASE)
_SURROGATE = re.compile(
    rb"(\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2})|\\u[dD][89a-fA-F][\da-fA-F]{2}"
)
"""A pair of surrogates, which is one character, or a lone one, which is none."""
_Decoded = TypeVar("_Decoded")


def decode(decoder: msgspec.json.Decoder[_Decoded], text: bytes, where: str) -> _Decoded:
    """Decode JSON; what profilers do write is repaired: bad UTF-8, lone surrogates, non-finite numbers.

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


def decode_header(text: bytes, where: str, losses: list[str]) -> KinetoHeader | None:
    """Decode a file without its events; return None where the text is cut off.

    A key that is laid out otherwise is taken as absent; ``losses`` gets a clause on it.

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
        raise TraceFormatError("has traceEvents twice", where=where, remedy=EXPORT_AGAIN)
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


def _readable_keys(text: bytes, losses: list[str]) -> KinetoHeader | None:
    """Return the keys of a header that can be read, None where it is no header at all."""
    try:
        loose = _decode_or_repair(_LOOSE_HEADER, text)
    except msgspec.DecodeError:
        return None

    def read(key: str, value: msgspec.Raw, layout: Any) -> Any:
        try:
            return msgspec.json.decode(value, type=layout) if value else None
        except (msgspec.DecodeError, RecursionError):
            losses.append(f"the header's {key} cannot be read and is not used")
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
            repaired = _SURROGATE.sub(lambda pair: pair[1] or rb"\ufffd", repaired)
            return decoder.decode(repaired)
    except RecursionError as error:
        raise msgspec.ValidationError("a value is nested too deeply") from error


def _unreadable(error: msgspec.DecodeError, where: str) -> TraceFormatError:
    return TraceFormatError(
        f"cannot be read as a Kineto trace ({error})", where=where, remedy=EXPORT_AGAIN
    )


def decimal_texts(values: Sequence[msgspec.Raw]) -> list[bytes]:
    """Return JSON numbers as text, empty where there is none.

    Some writers put numbers between quotes, or write null.
    """
    joined = b",".join(values)
    texts = joined.split(b",") if values else []
    if len(texts) != len(values) or b'"' in joined or b"null" in joined:
        texts = [bytes(value).strip(b'"') for value in values]
        texts = [b"" if text == b"null" else text for text in texts]
    return texts


def microseconds_to_ns(texts: Sequence[bytes], where: str) -> npt.NDArray[np.int64]:
    """Return decimal microseconds as integer nanoseconds, rounded half to even below 1 ns.

    >>> microseconds_to_ns([b"1712195495505543.251"], "").tolist()
    [1712195495505543251]

    Raises:
        TraceFormatError: One of them is no number.
    """
    if not texts:
        return np.empty(0, dtype=np.int64)
    text = pa.array(texts, pa.binary()).cast(pa.string())
    try:
        thousandths = _thousandths(text)
    except pa.ArrowInvalid as error:
        raise TraceFormatError(
            f"a time stamp cannot be read ({error})", where=where, remedy=EXPORT_AGAIN
        ) from error
    # The unscaled value of a decimal of scale 3 counts nanoseconds. It is stored as
    # two little-endian words: the lower holds a 64-bit value whole, the upper its sign.
    words = np.frombuffer(thousandths.buffers()[1], dtype="<i8").reshape(-1, 2)
    words = words[thousandths.offset : thousandths.offset + len(thousandths)]
    lower = words[:, 0].copy()
    if (
        (words[:, 1] != lower >> 63).any()
        or (lower >= _LATEST_NS).any()
        or (lower <= -_LATEST_NS).any()
    ):
        raise TraceFormatError("a time stamp is centuries away", where=where, remedy=EXPORT_AGAIN)
    return lower


def readable_stamps(texts: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the stamps that are times, in nanoseconds, and which of the texts they are.

    A number beyond the years that we know, and anything that is no number, is no time.
    """
    try:
        return microseconds_to_ns(texts, ""), np.ones(len(texts), dtype=bool)
    except TraceFormatError:
        values, is_time = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=bool)
    for place, text in enumerate(texts):
        try:
            (values[place],) = microseconds_to_ns([text], "")
        except TraceFormatError:
            continue
        is_time[place] = True
    return values[is_time], is_time


def _thousandths(text: pa.StringArray) -> pa.Decimal128Array:
    """Return numbers at scale 3; the first way, for those that have no more digits, is faster."""
    try:
        return text.cast(pa.decimal128(22, 3))
    except pa.ArrowInvalid:
        exact = text.cast(pa.decimal128(38, 20))
    return pc.round(exact, 3, round_mode="half_to_even").cast(pa.decimal128(38, 3))


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
    if set(map(type, values)) == {float}:
        found = np.fromiter(cast(Sequence[float], values), np.float64, len(values))
    else:
        found = np.array([_to_float(value) for value in values], dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)


def _to_float(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return float("nan")

"""Decoding one Kineto JSON file into typed events, and its times to exact nanoseconds.

Kineto writes stamps as decimal microseconds with up to three digits. A double of
the size of a Unix time in microseconds resolves 0.25 us only, so ``ts`` and ``dur``
are kept as text and turned to integers by decimal arithmetic: a stamp is as exact
as what the file says. ``baseTimeNanoseconds``, when present, is added.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import TraceFormatError

_NO_VALUE = msgspec.Raw(b"")
_LATEST_US = 4_600_000_000_000_000
"""Year 2115. A stamp and a time base below it add up within 64 bits of nanoseconds."""
_EXPORT_AGAIN = "Export the trace again"


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
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Any = msgspec.field(default=None, name="Seq")
    source_rank: Any = msgspec.field(default=None, name="Src Rank")
    destination_rank: Any = msgspec.field(default=None, name="Dst Rank")
    merged_rank: Any = msgspec.field(default=None, name="rank")


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

    def start_text(self) -> bytes:
        """Return the start as decimal text, empty where the event has none."""
        return _decimal_text(self.ts)

    def dur_text(self) -> bytes:
        """Return the duration as decimal text, empty where the event has none."""
        return _decimal_text(self.dur)


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


_Base = Annotated[int, msgspec.Meta(ge=0, lt=_LATEST_US * 1000)]


class KinetoFile(msgspec.Struct, rename="camel"):
    """The parts of a file that we use; all others are skipped while decoding."""

    trace_events: list[Event]
    distributed_info: DistributedInfo | None = None
    device_properties: list[DeviceProperties] | None = None
    base_time_nanoseconds: _Base | None = None


_DECODER = msgspec.json.Decoder(KinetoFile)
_NOT_FINITE = re.compile(rb"(:\s*)[-+]?(?:nan|inf|infinity)\b", re.IGNORECASE)


def decode(content: bytes, where: str) -> KinetoFile:
    """Decode a file; bad UTF-8 and non-finite numbers, which profilers do write, are repaired.

    Args:
        content: The uncompressed JSON.
        where: What an error names.

    Raises:
        TraceFormatError: It is not JSON, is cut off, or is not laid out as a Kineto trace.
    """
    try:
        return _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        repaired = _NOT_FINITE.sub(rb"\1null", content.decode(errors="replace").encode())
    try:
        return _DECODER.decode(repaired)
    except msgspec.DecodeError as error:
        raise TraceFormatError(
            f"cannot be read as a Kineto trace ({error})", where=where, remedy=_EXPORT_AGAIN
        ) from error


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
        exact = text.cast(pa.decimal128(38, 20))
    except pa.ArrowInvalid as error:
        raise TraceFormatError(
            f"a time stamp cannot be read ({error})", where=where, remedy=_EXPORT_AGAIN
        ) from error
    if pc.max(pc.abs(exact)).as_py() >= _LATEST_US:
        raise TraceFormatError("a time stamp is centuries away", where=where, remedy=_EXPORT_AGAIN)
    thousandths = pc.round(exact, 3, round_mode="half_to_even").cast(pa.decimal128(38, 3))
    # The unscaled value of a decimal of scale 3 counts nanoseconds. It is stored
    # as two little-endian words, of which the lower holds any 64-bit value whole.
    words = np.frombuffer(thousandths.buffers()[1], dtype="<i8").reshape(-1, 2)[:, 0]
    return words[thousandths.offset : thousandths.offset + len(thousandths)].copy()


def _decimal_text(value: msgspec.Raw) -> bytes:
    """Return a JSON number as text; some writers put it between quotes, or write null."""
    text = bytes(value).strip(b'"')
    return b"" if text == b"null" else text


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

"""Which format a file has, by its content."""

from __future__ import annotations

import gzip
import io
import re
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
import pyarrow as pa

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.message import Message, message

DAMAGED_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises on torn, mistyped and absurdly nested content."""
DAMAGED_SQLITE = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""What reading SQLite raises on damage; its own messages may be no text."""
HEAD_BYTES = 1 << 18
"""Uncompressed bytes that are looked at to recognise a format."""
NDTIMELINE_COLUMNS = frozenset(
    ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id"]
)
"""Columns that an NDTimeline parquet file must have."""

MAX_RANKS = 1 << 20
"""No job has so many; a larger number is no rank."""
MAX_BYTES = 1 << 30
"""Files that are read as a whole may be as large as that, unpacked."""

_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
UTF8_MARK = b"\xef\xbb\xbf"
"""Byte order mark that some editors put before a text."""
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SQLITE_MAGIC = b"SQLite format 3\0"
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_SCHEMA = re.compile(rb'"schema"\s*:\s*"')
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_KINETO_KEY = re.compile(
    rb'"(?:traceEvents|schemaVersion|distributedInfo|deviceProperties|baseTimeNanoseconds)"\s*:'
)
_EVENT_KEY = re.compile(rb'"ph"\s*:\s*"[XBE]"')
_PIPELINE_KEY = re.compile(rb'"fwd_start"\s*:\s*\[')
_PIPELINE_SIZE_KEY = re.compile(rb'"pp_size"\s*:')
_PIPELINE_BATCHES_KEY = re.compile(rb'"(?:num_mbs|micro_batches)"\s*:')
_INSPECTOR_KEY = re.compile(rb'"dump_timestamp_us"\s*:')
_DUMP_KEY = re.compile(rb"pg_config|pg_status|profiling_name")
_SEGMENTS_KEY = re.compile(rb"segments")
_SEGMENT_KEY = re.compile(rb"total_size|device_traces")
_NUMBERS = rb"-?\d{1,20}+(?:\s*,\s*-?\d{1,20}+)*+"
_TIMELINE_EVENTS = re.compile(
    rb"\s*\[\s*\[\s*-?\d{1,20}\s*,\s*[1-4]\s*,\s*-?\d{1,20}\s*,\s*[0-7]\s*\]"
    rb"\s*(?:\]|,\s*\[\s*-?\d|,?\s*$)"
)
_TIMELINE_SIZES = re.compile(rb"\s*\[\s*\[\s*%b\s*+(?:,?\s*+(?:-?$|$)|\]\s*,\s*\[\s*\[)" % _NUMBERS)
_MEMORY_PAGE = re.compile(rb"GPU Memory Timeline HTML|MemoryViz\.js|memory_viz", re.IGNORECASE)
_NSIGHT_TABLE = re.compile(rb"CUPTI_ACTIVITY_KIND_|NVTX_EVENTS|META_DATA_EXPORT")
_PICKLE_MAGIC = b"\x80"
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_. ]?(\d{1,9})(?!\d)", re.IGNORECASE)
_DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


class InputFormat(StrEnum):
    """What a file holds."""

    KINETO = "kineto"
    NDTIMELINE = "ndtimeline"
    PIPELINE_VISUALISER = "pipeline_visualiser"
    PIPELINE_CONFIG = "pipeline_config"
    NCCL_INSPECTOR = "nccl_inspector"
    FLIGHT_RECORDER = "flight_recorder"
    NSIGHT = "nsight"
    MEMORY_EVENTS = "memory_events"
    """Each allocation of a memory timeline of the PyTorch profiler."""
    MEMORY_SIZES = "memory_sizes"
    """The memory timeline as sizes of the categories over time."""
    MEMORY_SNAPSHOT = "memory_snapshot"
    MEMORY_PAGE = "memory_page"
    """A page that shows memory: it holds a picture, no numbers."""
    ARCHIVE = "archive"
    UNKNOWN = "unknown"


MEMORY_FORMATS = (
    InputFormat.MEMORY_SNAPSHOT,
    InputFormat.MEMORY_EVENTS,
    InputFormat.MEMORY_SIZES,
)
"""Formats of files about the memory of one rank, in the order in which they are read."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file on disk, or one member of an archive (then its bytes are held)."""

    label: str
    """How messages name it: the path, or ``archive!member``."""
    path: Path
    """The file on disk that holds it."""
    content: bytes | None = None
    """The bytes of an archive member, perhaps compressed."""

    @property
    def name(self) -> str:
        """Return the file name without folders."""
        return self.label.replace("!", "/").rsplit("/", 1)[-1]

    def head(self) -> bytes:
        """Return the first ``HEAD_BYTES`` bytes, uncompressed; fewer where the file is torn."""
        start = self.first_bytes(HEAD_BYTES)
        if not start.startswith(_GZIP_MAGIC):
            return start.removeprefix(UTF8_MARK)
        try:
            head = zlib.decompressobj(wbits=31).decompress(start, HEAD_BYTES)
        except zlib.error:
            return b""
        return head.removeprefix(UTF8_MARK)

    def is_packed(self) -> bool:
        """Return whether the content is not on disk as it is."""
        return self.content is not None or self.first_bytes(len(_GZIP_MAGIC)) == _GZIP_MAGIC

    def read(self, *, most_bytes: int = MAX_BYTES) -> bytes:
        """Return the whole content, uncompressed.

        Raises:
            TraceFormatError: It is too large, or its compressed stream is damaged or ends early.
        """
        stream = self.path.open("rb") if self.content is None else io.BytesIO(self.content)
        with stream:
            is_compressed = stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            stream.seek(0)
            source = gzip.GzipFile(fileobj=stream) if is_compressed else stream
            try:
                content = source.read(most_bytes + 1)
            except _DAMAGED_GZIP as error:
                raise TraceFormatError(
                    message("refused.gzip", reason=str(error)),
                    where=self.label,
                    remedy=message("advice.copy_again"),
                ) from error
        if len(content) > most_bytes:
            raise TraceFormatError(
                message("refused.larger_unpacked", most_bytes=most_bytes),
                where=self.label,
                remedy=message("advice.record_less"),
            )
        return content.removeprefix(UTF8_MARK)

    def first_bytes(self, size: int) -> bytes:
        """Return the first bytes as they are on disk."""
        if self.content is not None:
            return self.content[:size]
        with self.path.open("rb") as stream:
            return stream.read(size)


def classify(file: InputFile) -> InputFormat:
    """Return the format of a file by its first bytes; the name plays no part."""
    head = file.head()
    if head.startswith(_PARQUET_MAGIC):
        return InputFormat.NDTIMELINE if _is_ndtimeline(file.path) else InputFormat.UNKNOWN
    if head.startswith(_SQLITE_MAGIC):
        return InputFormat.NSIGHT if _is_nsight(file, head) else InputFormat.UNKNOWN
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
        return InputFormat.ARCHIVE
    if head.lstrip()[:1] == b"{":
        return _first_with_all(_JSON_KEYS, head)
    if head.lstrip()[:1] == b"[":
        return next((kind for key, kind in _LISTS if key(head)), InputFormat.UNKNOWN)
    if head.startswith(_PICKLE_MAGIC):
        return _first_with_all(_PICKLES, head)
    if head.lstrip()[:1] == b"<" and _MEMORY_PAGE.search(head):
        return InputFormat.MEMORY_PAGE
    return InputFormat.UNKNOWN


_JSON_KEYS = (
    ((_KINETO_KEY,), InputFormat.KINETO),
    ((_PIPELINE_KEY,), InputFormat.PIPELINE_VISUALISER),
    ((_PIPELINE_SIZE_KEY, _PIPELINE_BATCHES_KEY), InputFormat.PIPELINE_CONFIG),
    ((_INSPECTOR_KEY,), InputFormat.NCCL_INSPECTOR),
    ((_SEGMENTS_KEY, _SEGMENT_KEY), InputFormat.MEMORY_SNAPSHOT),
    ((_DUMP_KEY,), InputFormat.FLIGHT_RECORDER),
)
"""Keys, all of which are there, by which JSON objects are told apart, in the order of trial."""
_LISTS = (
    (_EVENT_KEY.search, InputFormat.KINETO),
    (_TIMELINE_EVENTS.match, InputFormat.MEMORY_EVENTS),
    (_TIMELINE_SIZES.match, InputFormat.MEMORY_SIZES),
)
_PICKLES = (
    ((_SEGMENTS_KEY, _SEGMENT_KEY), InputFormat.MEMORY_SNAPSHOT),
    ((_DUMP_KEY,), InputFormat.FLIGHT_RECORDER),
)


def _first_with_all(
    table: Sequence[tuple[Sequence[re.Pattern[bytes]], InputFormat]], head: bytes
) -> InputFormat:
    """Return the first format of which the head has all keys."""
    found = (kind for keys, kind in table if all(key.search(head) for key in keys))
    return next(found, InputFormat.UNKNOWN)


def rank_in_name(name: str) -> int | None:
    """Return the number behind ``rank`` or ``worker`` in a file name, None if there is none."""
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found and int(found[1]) < MAX_RANKS else None


def why_unknown(file: InputFile) -> Message | None:
    """Return why a file of unknown format is none; None where that is not plain."""
    head = file.head()
    if not head:
        return message("foreign.empty")
    if head.startswith(_UTF16_MARKS):
        return message("foreign.wide_text")
    if _NODES.search(head) and _SCHEMA.search(head):
        return message("foreign.execution_trace")
    return None


WHAT_WE_READ = message("advice.formats")
"""Remedy of an input in which there is nothing to read."""


def _is_ndtimeline(path: Path) -> bool:
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names) >= NDTIMELINE_COLUMNS
    except (pa.ArrowException, OSError):
        return False


def _is_nsight(file: InputFile, head: bytes) -> bool:
    """Return whether an SQLite file has tables of Nsight Systems.

    The list of tables is asked for, as it may be anywhere in the file; where it cannot be
    read, the first bytes decide, so that a damaged export is called damaged.
    """
    if file.is_packed():
        return _NSIGHT_TABLE.search(head) is not None
    uri = f"{file.path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True)
    except DAMAGED_SQLITE:
        return False
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except DAMAGED_SQLITE:
        return _NSIGHT_TABLE.search(head) is not None
    finally:
        connection.close()
    return any(_NSIGHT_TABLE.match(str(name).encode()) for (name,) in names)

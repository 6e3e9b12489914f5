"""Which files an input path stands for, and which format each of them is, by content."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import TraceFormatError

DAMAGED_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises on torn, mistyped and absurdly nested content."""
HEAD_BYTES = 1 << 18
"""Uncompressed bytes that are looked at to recognise a format."""
NDTIMELINE_COLUMNS = frozenset(
    ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id"]
)
"""Columns that an NDTimeline parquet file must have."""

_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_KINETO_KEY = re.compile(
    rb'"(?:traceEvents|schemaVersion|distributedInfo|deviceProperties|baseTimeNanoseconds)"\s*:'
)
_EVENT_KEY = re.compile(rb'"ph"\s*:\s*"[XBE]"')
_PIPELINE_KEY = re.compile(rb'"fwd_start"\s*:\s*\[')
_PIPELINE_CONFIG_KEY = re.compile(rb'"pp_size"\s*:(?s:.*)"(?:num_mbs|micro_batches)"\s*:')
_INSPECTOR_KEY = re.compile(rb'"dump_timestamp_us"\s*:')
_DUMP_KEY = re.compile(rb"pg_config|pg_status|profiling_name")
_PICKLE_MAGIC = b"\x80"
_DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


class InputFormat(StrEnum):
    """What a file holds."""

    KINETO = "kineto"
    NDTIMELINE = "ndtimeline"
    PIPELINE_VISUALISER = "pipeline_visualiser"
    PIPELINE_CONFIG = "pipeline_config"
    NCCL_INSPECTOR = "nccl_inspector"
    FLIGHT_RECORDER = "flight_recorder"
    ARCHIVE = "archive"
    UNKNOWN = "unknown"


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
        start = self._first(HEAD_BYTES)
        if not start.startswith(_GZIP_MAGIC):
            return start
        try:
            return zlib.decompressobj(wbits=31).decompress(start, HEAD_BYTES)
        except zlib.error:
            return b""

    def read(self) -> bytes:
        """Return the whole content, uncompressed.

        Raises:
            TraceFormatError: The compressed stream is damaged or ends early.
        """
        content = self.path.read_bytes() if self.content is None else self.content
        if not content.startswith(_GZIP_MAGIC):
            return content
        try:
            return gzip.decompress(content)
        except _DAMAGED_GZIP as error:
            raise TraceFormatError(
                f"the gzip stream is damaged ({error})", where=self.label, remedy="Copy it again"
            ) from error

    def _first(self, size: int) -> bytes:
        if self.content is not None:
            return self.content[:size]
        with self.path.open("rb") as stream:
            return stream.read(size)


def find_files(path: Path) -> list[InputFile]:
    """Return the files that a file, a folder (with all below it) or a glob stands for, sorted.

    Raises:
        TraceFormatError: Nothing is there.
    """
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = sorted(entry for entry in path.rglob("*") if entry.is_file())
        if not found:
            raise TraceFormatError("the folder is empty", where=str(path), remedy=_WHAT_WE_READ)
    else:
        found = _expand(path)
    return [InputFile(str(entry), entry) for entry in found]


def classify(file: InputFile) -> InputFormat:
    """Return the format of a file by its first bytes; the name plays no part."""
    head = file.head()
    if head.startswith(_PARQUET_MAGIC):
        return InputFormat.NDTIMELINE if _is_ndtimeline(file.path) else InputFormat.UNKNOWN
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
        return InputFormat.ARCHIVE
    if head.lstrip()[:1] == b"{":
        return next((kind for key, kind in _JSON_KEYS if key.search(head)), InputFormat.UNKNOWN)
    if head.lstrip()[:1] == b"[" and _EVENT_KEY.search(head):
        return InputFormat.KINETO
    if head.startswith(_PICKLE_MAGIC) and _DUMP_KEY.search(head):
        return InputFormat.FLIGHT_RECORDER
    return InputFormat.UNKNOWN


_JSON_KEYS = (
    (_KINETO_KEY, InputFormat.KINETO),
    (_PIPELINE_KEY, InputFormat.PIPELINE_VISUALISER),
    (_PIPELINE_CONFIG_KEY, InputFormat.PIPELINE_CONFIG),
    (_INSPECTOR_KEY, InputFormat.NCCL_INSPECTOR),
    (_DUMP_KEY, InputFormat.FLIGHT_RECORDER),
)
"""Keys by which the formats that are JSON objects are told apart, in the order of trial."""


def unpack(archive: InputFile) -> Iterator[InputFile]:
    """Yield the regular files of a tar archive one by one; nothing is written to disk.

    Raises:
        TraceFormatError: The archive is damaged.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(archive.read())) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield InputFile(f"{archive.label}!{member.name}", archive.path, stream.read())
    except (tarfile.TarError, EOFError) as error:
        raise TraceFormatError(
            f"the archive is damaged ({error})", where=archive.label, remedy="Copy it again"
        ) from error


def nothing_readable(path: Path, count: int) -> TraceFormatError:
    """Return the error for an input in which no file is a trace."""
    what = "is no trace that we can read" if count == 1 else f"none of its {count} files is a trace"
    return TraceFormatError(what, where=str(path), remedy=_WHAT_WE_READ)


_WHAT_WE_READ = (
    "Give a meshscope run directory, Kineto traces of the PyTorch profiler (.json, .json.gz, tar), "
    "an NDTimeline parquet file, pipeline visualiser dumps, a log of the NCCL Inspector, "
    "or dumps of the PyTorch flight recorder"
)


def _expand(pattern: Path) -> list[Path]:
    """Return the files that match a glob; its folders above the first wildcard are literal."""
    parts = pattern.parts
    wild = next((i for i, part in enumerate(parts) if re.search(r"[*?\[]", part)), None)
    if wild is None:
        raise TraceFormatError(
            "no such file or folder", where=str(pattern), remedy="Check the path"
        )
    found = sorted(p for p in Path(*parts[:wild]).glob("/".join(parts[wild:])) if p.is_file())
    if not found:
        raise TraceFormatError(
            "no file matches the pattern", where=str(pattern), remedy="Quote it and check it"
        )
    return found


def _is_ndtimeline(path: Path) -> bool:
    try:
        return set(pq.read_schema(path).names) >= NDTIMELINE_COLUMNS
    except (pa.ArrowException, OSError):
        return False

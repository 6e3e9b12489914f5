"""What becomes of a trace file that was written: compressed, hashed, described."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..clock import unix_ns
from ..schema.deep_trace import (
    FOLDER,
    TraceName,
    description_file,
    raw_name,
    read_description,
    sealed_file,
    sealed_name,
)
from ..schema.manifest import create_file, part_directories, write_json

_CHUNK_BYTES = 1 << 20
_LEVEL = 1
"""Nearly as small as the default for JSON, at a third of its time."""
_TAIL_BYTES = 4096


class RawTrace(NamedTuple):
    """A trace file that is as its process wrote it."""

    path: Path
    rank: int
    name: TraceName
    pid: int


class SealedTrace(NamedTuple):
    """A trace file as it is kept."""

    path: Path
    rank: int
    name: TraceName
    size_bytes: int
    sha256: str


def raw_traces(run_path: Path) -> Iterator[RawTrace]:
    """Yield the raw files of all ranks of a run."""
    for rank, parts in part_directories(run_path).items():
        for part in parts.values():
            folder = part / FOLDER
            with suppress(OSError):
                for path in sorted(folder.iterdir()):
                    found = raw_name(path)
                    if found is not None and not path.is_symlink():
                        yield RawTrace(path, rank, *found)


def sealed_traces(run_path: Path, ticket: str | None = None) -> Iterator[SealedTrace]:
    """Yield the sealed files of all ranks of a run, all or those of one request."""
    for rank, parts in part_directories(run_path).items():
        for part in parts.values():
            with suppress(OSError):
                for path in sorted((part / FOLDER).iterdir()):
                    name = sealed_name(path)
                    if name is None or path.is_symlink() or ticket not in (None, name.ticket):
                        continue
                    said = read_description(path)
                    size_bytes, digest = said.get("size_bytes"), said.get("sha256")
                    yield SealedTrace(
                        path,
                        rank,
                        name,
                        size_bytes if isinstance(size_bytes, int) else path.stat().st_size,
                        digest if isinstance(digest, str) else "",
                    )


def is_complete(path: Path) -> bool:
    """Tell whether a trace was written to its end: the name of the trace comes last."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            tail = file.read().rstrip()
    except OSError:
        return False
    return tail.endswith(b"}") and b'"traceName"' in tail


def seal(raw: RawTrace) -> SealedTrace | None:
    """Compress a complete trace, write its description beside it, remove the raw file.

    Two processes may try at the same time: one does it, the other gets None.

    Raises:
        OSError: There is no room, or a file cannot be read or written; the raw file stays.
    """
    sealed = sealed_file(raw.path.parent, raw.name, raw.rank)
    claimed = raw.path.with_suffix(".sealing")
    try:
        raw.path.rename(claimed)
    except FileNotFoundError:
        return None
    draft = sealed.with_suffix(".gz.draft")
    try:
        draft.unlink(missing_ok=True)
        size_bytes, digest = _compress(claimed, draft)
        draft.rename(sealed)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        claimed.rename(raw.path)
        raise
    description = {
        "rank": raw.rank,
        "pid": raw.pid,
        "ticket": raw.name.ticket,
        "first_step": raw.name.first_step,
        "last_step": raw.name.last_step,
        "size_bytes": size_bytes,
        "sha256": digest,
        "sealed_unix_ns": unix_ns(),
    }
    write_json(description_file(sealed), description)
    claimed.unlink()
    return SealedTrace(sealed, raw.rank, raw.name, size_bytes, digest)


def _compress(source: Path, target: Path) -> tuple[int, str]:
    """Return size in bytes and SHA-256 of the compressed file."""
    digest, size_bytes = hashlib.sha256(), 0
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    out = create_file(target)
    try:
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                size_bytes += _put(out, compressor.compress(chunk), digest)
        size_bytes += _put(out, compressor.flush(), digest)
        os.fsync(out)
    finally:
        os.close(out)
    return size_bytes, digest.hexdigest()


def _put(out: int, data: bytes, digest: Any) -> int:
    digest.update(data)
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
    return len(data)

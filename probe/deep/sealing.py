"""What becomes of a trace file that was written: compressed, hashed, described."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

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
"""Holds the name of the trace, a path, which comes last."""
_DRAFT = ".draft"


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
        yield from raw_traces_in(rank, parts.values())


def raw_traces_in(rank: int, parts: Iterable[Path]) -> Iterator[RawTrace]:
    """Yield the raw files of a rank in some parts of its recording."""
    for part in parts:
        with suppress(OSError):
            for path in sorted((part / FOLDER).iterdir()):
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


def seal(raw: RawTrace, given_up: Callable[[], bool] = lambda: False) -> SealedTrace | None:
    """Compress a complete trace, write its description beside it, remove the raw file.

    The raw file stays under its name until the sealed one is there, so a process that is
    killed while it seals loses nothing. Two may try at the same time: the one that has
    the lock does it, the other gets None. The lock ends with the process that has it.

    Args:
        raw: The trace.
        given_up: Asked now and then whether to leave it as it is.

    Raises:
        OSError: There is no room, a file cannot be read or written, or it was given up; the
            raw file stays.
    """
    try:
        # For writing, because network file systems lock nothing else.
        source = raw.path.open("r+b")
    except FileNotFoundError:
        return None
    with source:
        if not _claim(source, raw.path):
            return None
        sealed = sealed_file(raw.path.parent, raw.name, raw.rank)
        for left in sealed.parent.glob(f"{sealed.name}.*{_DRAFT}"):
            left.unlink(missing_ok=True)  # Of a process that was killed.
        draft = sealed.with_name(f"{sealed.name}.{os.urandom(4).hex()}{_DRAFT}")
        try:
            size_bytes, digest = _compress(source, draft, given_up)
            write_json(description_file(sealed), _description(raw, size_bytes, digest))
            draft.rename(sealed)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        raw.path.unlink(missing_ok=True)
    return SealedTrace(sealed, raw.rank, raw.name, size_bytes, digest)


def _claim(source: IO[bytes], path: Path) -> bool:
    """Lock a file for this process; False if another one has it, or had it and is done."""
    try:
        fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # No locks here: two that seal at once do it twice, and the last one counts.
    try:
        return os.path.samestat(os.fstat(source.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _description(raw: RawTrace, size_bytes: int, digest: str) -> dict[str, Any]:
    return {
        "rank": raw.rank,
        "pid": raw.pid,
        "ticket": raw.name.ticket,
        "first_step": raw.name.first_step,
        "last_step": raw.name.last_step,
        "size_bytes": size_bytes,
        "sha256": digest,
        "sealed_unix_ns": unix_ns(),
    }


def _compress(source: IO[bytes], target: Path, given_up: Callable[[], bool]) -> tuple[int, str]:
    """Return size in bytes and SHA-256 of the compressed file."""
    digest, size_bytes = hashlib.sha256(), 0
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    out = create_file(target)
    try:
        while chunk := source.read(_CHUNK_BYTES):
            size_bytes += _put(out, compressor.compress(chunk), digest)
            if given_up():
                raise InterruptedError(errno.EINTR, "given up", os.fspath(target))
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

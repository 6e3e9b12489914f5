"""Segment files: Arrow IPC streams in checksummed blocks.

Every block starts with 16 bytes: magic (three fixed letters and the kind of
block), payload length, crc32, and the block's number in the file. The checksum
covers the other twelve bytes and the payload, because Arrow itself reads
flipped bits without complaint. A file is one header block (JSON), data blocks
and, if its writer closed it, one end block. After damage the reader looks for
the next intact block.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .errors import FormatVersionError
from .manifest import check_format_version, create_file
from .message import message
from .reading import OwnDescriptor, open_file
from .tables import FORMAT_VERSION

MAGIC = b"MSB"
HEADER_KIND, DATA_KIND, END_KIND = b"H", b"D", b"E"

_BLOCK = struct.Struct("<4sIII")
_SEGMENT_FILE = re.compile(r"seg-(\d{6,9})\.arrows")


def segment_path(directory: Path, number: int) -> Path:
    """Return the path of a segment; the first has number 1."""
    return directory / f"seg-{number:06d}.arrows"


def segment_paths(directory: Path) -> dict[int, Path]:
    """Return the existing segments by number, oldest first."""
    found = {}
    for path in directory.iterdir():
        match = _SEGMENT_FILE.fullmatch(path.name)
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items()))


class SegmentFile:
    """One segment that is being written.

    Attributes:
        size_bytes: Length of the file so far.
    """

    def __init__(self, directory: Path, *, rank: int | None, number: int) -> None:
        """Create the file and write its header block.

        Args:
            directory: That of a rank or of a host.
            rank: The rank, None in the directory of a host.
            number: Its number, from 1.

        Raises:
            OSError: It exists or cannot be written.
        """
        self.path = segment_path(directory, number)
        self.size_bytes = 0
        self._blocks = 0
        self._descriptor = OwnDescriptor(create_file(self.path))
        facts = {"format_version": FORMAT_VERSION, "rank": rank, "segment": number}
        try:
            self._append(HEADER_KIND, json.dumps(facts).encode())
        except OSError:
            self.abandon()
            raise

    def append(self, payload: bytes | memoryview) -> None:
        """Append a data block.

        Raises:
            OSError: It could not be written in full; the file then ends in a torn block.
        """
        self._append(DATA_KIND, payload)

    def close(self) -> None:
        """Write the end block and close the file.

        Raises:
            OSError: The end block could not be written.
        """
        try:
            self._append(END_KIND, b"")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without an end block."""
        self._descriptor.close()

    def _append(self, kind: bytes, payload: bytes | memoryview) -> None:
        crc = _checksum(kind, self._blocks, payload)
        head = _BLOCK.pack(MAGIC + kind, len(payload), crc, self._blocks)
        rest = memoryview(head + bytes(payload))
        if not self._descriptor.is_open:
            raise OSError(errno.EBADF, "the program has closed it", str(self.path))
        while rest:
            rest = rest[os.write(self._descriptor.number, rest) :]
        self.size_bytes += len(head) + len(payload)
        self._blocks += 1


@dataclass(slots=True)
class SegmentContents:
    """The intact data blocks of a segment, and what is wrong with the rest."""

    payloads: list[bytes] = field(default_factory=list)
    closed: bool = False
    """Whether the writer finished the file."""
    problems: list[str] = field(default_factory=list)
    """One clause each, without the file name."""


class _Block(NamedTuple):
    kind: bytes
    number: int
    payload: bytes
    end: int
    """Offset of the byte behind the block."""


def read_segment(path: Path) -> SegmentContents:
    """Read all intact blocks of a segment, also while its writer appends.

    Raises:
        FormatVersionError: It was written by another format version.
        OSError: It cannot be read.
    """
    with open_file(path) as file:
        content = file.read()
    found = SegmentContents()
    offset = expected = 0
    while offset < len(content) and not found.closed:
        block = _block_at(content, offset)
        if block is None:
            offset, expected = _skip_damage(content, offset, expected, found)
            continue
        if block.number > expected:
            found.problems.append(f"{_blocks(expected, block.number)} missing")
        _accept(block, found, str(path))
        offset, expected = block.end, block.number + 1
    if not content:
        found.problems.append("the file is empty")
    if found.closed and offset < len(content):
        found.problems.append(f"{len(content) - offset} bytes follow the end mark")
    return found


def payload_heads(path: Path, most_bytes: int) -> Iterator[bytes]:
    """Yield how the payload of each data block of a segment begins, up to damage; no checksum is looked at.

    Args:
        path: The file; one that cannot be read has no blocks.
        most_bytes: How much of each payload is read.
    """
    with suppress(OSError), open_file(path) as file:
        while len(head := file.read(_BLOCK.size)) == _BLOCK.size:
            magic, length, _, _ = _BLOCK.unpack(head)
            if not magic.startswith(MAGIC):
                return
            start = file.read(min(length, most_bytes))
            file.seek(length - len(start), os.SEEK_CUR)
            if magic == MAGIC + DATA_KIND:
                yield start


def _skip_damage(
    content: bytes, offset: int, expected: int, found: SegmentContents
) -> tuple[int, int]:
    """Note the damage at an offset; return where to go on and with which block."""
    following = offset
    while (following := content.find(MAGIC, following + 1)) >= 0:
        block = _block_at(content, following)
        if block is not None and block.number >= expected:
            found.problems.append(
                f"{_blocks(expected, block.number)} damaged (checksum) at byte {offset}"
            )
            return following, block.number
    rest = len(content) - offset
    if _is_cut_short(content, offset):
        found.problems.append(f"block {expected} is torn: the file ends after {rest} bytes of it")
    else:
        found.problems.append(f"block {expected} is damaged (checksum) at byte {offset}, the last")
    return len(content), expected


def _is_cut_short(content: bytes, offset: int) -> bool:
    """Tell a block whose end was never written from one that was damaged later."""
    head = content[offset : offset + _BLOCK.size]
    if not head.startswith(MAGIC[: len(head)]):
        return False
    if len(head) < _BLOCK.size:
        return True
    return offset + _BLOCK.size + int(_BLOCK.unpack(head)[1]) > len(content)


def _block_at(content: bytes, offset: int) -> _Block | None:
    """Return the block that starts at an offset, or None if it is not intact."""
    if offset + _BLOCK.size > len(content):
        return None
    magic, length, crc, number = _BLOCK.unpack_from(content, offset)
    end = offset + _BLOCK.size + length
    if magic[: len(MAGIC)] != MAGIC or end > len(content):
        return None
    payload = content[offset + _BLOCK.size : end]
    kind = magic[len(MAGIC) :]
    if _checksum(kind, number, payload) != crc:
        return None
    return _Block(kind, number, payload, end)


def _checksum(kind: bytes, number: int, payload: bytes | memoryview) -> int:
    guarded = MAGIC + kind + struct.pack("<II", len(payload), number)
    return zlib.crc32(payload, zlib.crc32(guarded))


def _accept(block: _Block, found: SegmentContents, where: str) -> None:
    if block.kind == DATA_KIND:
        found.payloads.append(block.payload)
    elif block.kind == END_KIND:
        found.closed = True
    elif block.kind == HEADER_KIND:
        try:
            facts = json.loads(block.payload)
            version = facts.get("format_version")
        except (ValueError, AttributeError, RecursionError):
            raise FormatVersionError(
                message("refused.without_format_version"), where=where
            ) from None
        check_format_version(version, where)
    else:
        found.problems.append(f"block {block.number} is of unknown kind {block.kind!r}: skipped")


def _blocks(first: int, end: int) -> str:
    if end - first <= 1:
        return f"block {first} is"
    return f"blocks {first} to {end - 1} are"

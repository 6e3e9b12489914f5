"""Small files read as a whole, up to a bound: what a gzip file unpacks to is not known before."""

from __future__ import annotations

from typing import NamedTuple

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.message import Message, message
from .byte_source import ByteSource
from .files import InputFile

_PIECE_BYTES = 1 << 20


class WholeFile(NamedTuple):
    """The uncompressed content of a file."""

    content: bytes
    ends_early: bool
    """Whether its compressed stream is cut off."""


def read_whole(file: InputFile, *, most_bytes: int, remedy: Message) -> WholeFile:
    """Read a plain or gzip file; memory stays below about twice the bound.

    Args:
        file: A file on disk, or an archive member whose bytes are held.
        most_bytes: Larger files are refused, unpacked.
        remedy: What to do about one that is too large.

    Raises:
        TraceFormatError: It is too large, cannot be opened, or its stream is damaged.
    """
    try:
        with ByteSource(file) as source:
            # In pieces: the buffer of one large read would be given room for all at once.
            pieces, room = [], most_bytes + 1
            while room > 0 and (piece := source.read(min(room, _PIECE_BYTES))):
                pieces.append(piece)
                room -= len(piece)
            ends_early = source.ends_early
    except OSError as error:
        raise TraceFormatError(
            message("refused.unreadable", error=error.strerror), where=file.label
        ) from error
    if not room:
        raise TraceFormatError(
            message("refused.larger", most_bytes=most_bytes), where=file.label, remedy=remedy
        )
    return WholeFile(b"".join(pieces), ends_early)

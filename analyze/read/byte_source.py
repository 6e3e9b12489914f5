"""The uncompressed bytes of an input file: a piece at a time, however large it is, or a small one as a whole."""

from __future__ import annotations

import io
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self, cast

from isal import isal_zlib

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.message import Message, Text, message
from .files import UTF8_MARK, InputFile

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_FORMAT = 31
"""``wbits`` of a stream with a gzip header and checksum."""
_COMPRESSED_BYTES = 1 << 18
_MOST_RATIO = 200
"""Traces are compressed to a twentieth; what unpacks to far more is made to fill memory or time."""
_HARMLESS_BYTES = 256 << 20
"""Whatever the ratio, so much neither fills memory nor takes long."""
_DAMAGED = cast(type[Exception], isal_zlib.error)  # its stub declares an instance


class ByteSource:
    """Reads a plain or gzip file in pieces; a compressed stream may end early.

    Args:
        file: A file on disk, or an archive member whose bytes are held.
    """

    def __init__(self, file: InputFile) -> None:
        self._stream: BinaryIO = (
            file.path.open("rb") if file.content is None else io.BytesIO(file.content)
        )
        is_compressed = self._stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        self._stream.seek(0)
        self._inflater = _Inflater(self._stream, file.label) if is_compressed else None
        self.offset = 0
        """Uncompressed bytes that were read."""

    @property
    def position(self) -> int:
        """Return how many bytes of the file were read, compressed if it is."""
        return self._stream.tell()

    @property
    def ends_early(self) -> bool:
        """Return whether the compressed stream turned out to be cut off."""
        return self._inflater is not None and self._inflater.ends_early

    @property
    def is_followed(self) -> bool:
        """Return whether something that is not compressed followed the end of a compressed stream."""
        return self._inflater is not None and self._inflater.is_followed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end.

        Raises:
            TraceFormatError: The compressed stream is damaged, so that what it
                holds is not certain. One that is only cut off ends early instead.
        """
        source = self._inflater or self._stream
        pieces: list[bytes] = []
        missing = size
        while missing > 0 and (piece := source.read(missing)):
            pieces.append(piece)
            missing -= len(piece)
        text = b"".join(pieces)
        if self.offset == 0:
            text = text.removeprefix(UTF8_MARK)
        self.offset += size - missing
        return text


class _Inflater:
    """Decompresses a gzip stream of one or several members.

    The file classes of gzip and isal lose up to a buffer of good bytes when a
    stream is cut off; this one gives all that could be decompressed.
    """

    def __init__(self, stream: BinaryIO, label: str) -> None:
        self._stream, self._label = stream, label
        self._member = isal_zlib.decompressobj(_GZIP_FORMAT)
        self._pending = b""
        self._is_last = False
        self._given = 0
        self.ends_early = False
        self.is_followed = False

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none only at the end."""
        while not self._is_last:
            self._pending = self._pending or self._stream.read(_COMPRESSED_BYTES)
            is_at_end = not self._pending
            try:
                # Without more input this gives what the decompressor still holds.
                piece: bytes = self._member.decompress(self._pending, size)
            except _DAMAGED as error:
                raise self._damage(str(error)) from error
            self._pending = self._member.unconsumed_tail
            if self._member.eof:
                self._next_member()
            elif is_at_end and not piece:
                self._is_last = self.ends_early = True
            if piece:
                self._given += len(piece)
                self._refuse_bomb()
                return piece
        return b""

    def _refuse_bomb(self) -> None:
        if self._given > max(_HARMLESS_BYTES, _MOST_RATIO * self._stream.tell()):
            raise TraceFormatError(
                message("refused.unpacks_to_more", times=_MOST_RATIO),
                where=self._label,
                remedy=message("advice.unpack_unknown"),
            )

    def _next_member(self) -> None:
        """Go on behind the end of a member; zeros, which pad tapes and blocks, end the file."""
        rest = self._member.unused_data or self._stream.read(_COMPRESSED_BYTES)
        while rest and not rest.strip(b"\0"):
            rest = self._stream.read(_COMPRESSED_BYTES)
        self._pending = rest.lstrip(b"\0")
        self._is_last = not self._pending
        if self._pending and not _GZIP_MAGIC.startswith(self._pending[: len(_GZIP_MAGIC)]):
            # As gunzip does: the member that ended had a good checksum.
            self._pending, self._is_last, self.is_followed = b"", True, True
        self._member = isal_zlib.decompressobj(_GZIP_FORMAT)

    def _damage(self, reason: Text) -> TraceFormatError:
        return TraceFormatError(
            message("refused.gzip", reason=reason),
            where=self._label,
            remedy=message("advice.copy_again"),
        )


_PIECE_BYTES = 1 << 20
"""Larger pieces are not faster, and a limit is noticed later."""


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

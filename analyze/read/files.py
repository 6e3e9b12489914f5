"""One file that a user gave: its bytes, and the bounds of reading them."""

from __future__ import annotations

import gzip
import io
import re
import sqlite3
import zlib
from pathlib import Path

import msgspec

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.message import message

DAMAGED_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON raises on torn, mistyped and absurdly nested content."""
DAMAGED_SQLITE = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""What reading SQLite raises on damage; its own messages may be no text."""
HEAD_BYTES = 1 << 18
"""Uncompressed bytes that are looked at to recognise a format."""
MAX_RANKS = 1 << 20
"""No job has so many; a larger number is no rank."""
MAX_BYTES = 1 << 30
"""Files that are read as a whole may be as large as that, unpacked."""
UTF8_MARK = b"\xef\xbb\xbf"
"""Byte order mark that some editors put before a text."""
_GZIP_MAGIC = b"\x1f\x8b"
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_. ]?(\d{1,9})(?!\d)", re.IGNORECASE)
_RANK_OF_SERVER = re.compile(
    r"-TP-(\d{1,9})(?:-(?:PP|DP|EP)-0)*(?:-[A-Z]+)?\.trace\.json", re.IGNORECASE
)
"""Names of SGLang, which number the ranks of one tensor-parallel group; of a mesh of several axes they do not tell."""
_RANK_FOLDER = re.compile(r"(?:global[-_. ]?)?(?:rank|worker)[-_. ]?(\d{1,9})", re.IGNORECASE)
_FOLDERS = 2
"""Folders above a file that may be called after its rank."""
_DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


class InputFile(msgspec.Struct, frozen=True):
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


def rank_in_name(label: str) -> int | None:
    """Return the number behind ``rank`` or ``worker`` (of SGLang ``-TP-``) in the name of a file, None if there is none.

    A file whose own name has none is of the nearest folder above it that is called so and nothing else (``rank_3``).

    >>> rank_in_name("run/rank_3/trace.json"), rank_in_name("rank_3/worker5.json"), rank_in_name("rank_3_of_8/a.json")
    (3, 5, None)
    >>> rank_in_name("1712345678.1-TP-3.trace.json.gz"), rank_in_name("17-TP-3-PP-1.trace.json.gz")
    (3, None)
    """
    *folders, name = label.replace("!", "/").replace("\\", "/").split("/")
    found = _RANK_IN_NAME.search(name) or _RANK_OF_SERVER.search(name)
    named = [found] if found else [*map(_RANK_FOLDER.fullmatch, reversed(folders[-_FOLDERS:]))]
    number = next((int(one[1]) for one in named if one), MAX_RANKS)
    return number if number < MAX_RANKS else None

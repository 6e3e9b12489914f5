"""Files packed with zip, xz, bzip2 or Zstandard, replaced by what is in them.

gzip needs no unpacking: it is read as it is.
"""

from __future__ import annotations

import bz2
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import printable

from ..wording.message import message
from .files import InputFile
from .scratch import Scratch, require_room, safe_place

_ZIP = b"PK\x03\x04"
_PIECE_BYTES = 1 << 20
_MOST_RATIO = 400
"""Traces are compressed to a twentieth; what unpacks to far more is made to fill a disk."""
_HARMLESS_BYTES = 256 << 20
_MOST_MEMBERS = 100_000
_DAMAGED = (
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    pa.ArrowException,
)
"""What damaged streams, and members with a password, raise."""


def _zstd(path: Path) -> Any:
    return pa.CompressedInputStream(pa.OSFile(str(path), "rb"), "zstd")


_STREAMS: tuple[tuple[bytes, str, Callable[[Path], Any]], ...] = (
    (b"\xfd7zXZ\x00", ".xz", lzma.LZMAFile),
    (b"BZh", ".bz2", bz2.BZ2File),
    (b"\x28\xb5\x2f\xfd", ".zst", _zstd),
)
"""First bytes, ending of the name and reader of each form."""


def unpack(
    files: Iterable[InputFile], scratch: Scratch
) -> tuple[list[InputFile], list[TraceFormatError]]:
    """Return the files with each packed one replaced by its content.

    Args:
        files: What the user gave.
        scratch: Where the content goes.

    Returns:
        The files, and an error for each that cannot be unpacked.
    """
    found: list[InputFile] = []
    errors: list[TraceFormatError] = []
    for file in files:
        try:
            start = file.first_bytes(8)
        except OSError:
            # Told later, with the other files that cannot be opened.
            found.append(file)
            continue
        stream = next((one for one in _STREAMS if start.startswith(one[0])), None)
        try:
            if start.startswith(_ZIP):
                found += _members(file, scratch.new_folder())
            elif stream is not None:
                found.append(_inflated(file, scratch.new_folder(), stream[1], stream[2]))
            else:
                found.append(file)
        except _DAMAGED as error:
            errors.append(
                TraceFormatError(
                    message("refused.packed", error=str(error)),
                    where=file.label,
                    remedy=message("advice.unpack"),
                )
            )
        except TraceFormatError as error:
            errors.append(error)
    return found, errors


def _members(file: InputFile, folder: Path) -> Iterator[InputFile]:
    found = []
    with zipfile.ZipFile(file.path) as archive:
        for number, member in enumerate(archive.infolist()[:_MOST_MEMBERS]):
            if member.is_dir():
                continue
            label = f"{file.label}!{printable(member.filename)}"
            place = safe_place(folder / f"{number:05d}", member.filename)
            with archive.open(member) as source:
                _write(source, place, label, max(member.compress_size, 1))
            found.append(InputFile(label, place))
    return iter(found)


def _inflated(
    file: InputFile,
    folder: Path,
    ending: str,
    reader: Callable[[Path], Any],
) -> InputFile:
    name = file.name.removesuffix(ending)
    place = safe_place(folder, name)
    with reader(file.path) as source:
        _write(source, place, file.label, max(file.path.stat().st_size, 1))
    return InputFile(f"{file.label}!{name}", place)


def _write(source: IO[bytes], place: Path, label: str, packed_bytes: int) -> None:
    """Write a stream to a file.

    Raises:
        TraceFormatError: It unpacks to more than any trace does, or the disk has no room.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with place.open("wb") as target:
        while piece := source.read(_PIECE_BYTES):
            written += len(piece)
            if written > max(_HARMLESS_BYTES, _MOST_RATIO * packed_bytes):
                raise TraceFormatError(
                    message("refused.unpacks_to_more", times=_MOST_RATIO),
                    where=label,
                    remedy=message("advice.unpack_unknown"),
                )
            require_room(place.parent, len(piece), label)
            target.write(piece)

"""Tar archives, replaced by their members as if somebody had unpacked them."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Self, cast

import msgspec

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import printable

from ..wording.limits import Limit
from ..wording.message import message
from .byte_source import ByteSource
from .detect import classify
from .file_limits import left_out_files
from .files import HEAD_BYTES, InputFile
from .formats import ARCHIVE, UNKNOWN
from .scratch import Scratch, require_room, safe_place

_EndOfArchive = tarfile.EOFHeaderError  # type: ignore[attr-defined]
_HeaderError, _ReadError = tarfile.HeaderError, tarfile.ReadError
_SMALL_BYTES = 1 << 20
"""Smaller members are always unpacked: settings that belong to a trace say little of themselves."""
_PIECE_BYTES = 1 << 20
_MAGIC = (b"PAR1", b"SQLite format 3\0")
"""Starts of files of which only the whole tells whether they are a trace."""


class Unpacked(msgspec.Struct, frozen=True):
    """The files of an input with those of its archives."""

    files: list[InputFile]
    limits: list[Limit]
    """What could not be unpacked."""


class _Member(tarfile.TarInfo):
    """A member; a header that is damaged or missing is an error, and not the end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """Read the next header.

        Raises:
            ReadError: It is damaged, or the archive ends without its end mark.
        """
        try:
            return super().fromtarfile(tarfile)
        except _EndOfArchive:
            raise
        except _HeaderError as error:
            raise _ReadError(str(error)) from error


def unpack_archives(files: Iterable[InputFile], scratch: Scratch) -> Unpacked:
    """Return the files with each tar archive replaced by its members.

    Members that cannot be a trace are not unpacked, but counted. Of an archive that ends
    early, the members before its end are read.

    Args:
        files: What the user gave.
        scratch: Where members go.

    Raises:
        TraceFormatError: Nothing is left to be read, because archives are damaged.
    """
    found: list[InputFile] = []
    limits: list[Limit] = []
    errors: list[TraceFormatError] = []
    for file in files:
        if not _is_archive(file):
            found.append(file)
            continue
        try:
            skipped = _unpack(file, scratch.new_folder(), found)
        except TraceFormatError as error:
            errors.append(error)
            continue
        if skipped:
            limits.append(message("missing.members", count=skipped, file=file.name))
    if errors and not found:
        raise errors[0]
    return Unpacked(found, [*limits, *left_out_files(errors)])


def _is_archive(file: InputFile) -> bool:
    """Return whether a file is an archive; one that cannot be opened is reported later, with the rest."""
    try:
        return classify(file) == ARCHIVE
    except OSError:
        return False


def _unpack(archive: InputFile, folder: Path, found: list[InputFile]) -> int:
    """Append the members of an archive; return how many are no trace.

    Raises:
        TraceFormatError: The archive is damaged; what was before that is appended.
    """
    skipped = 0
    try:
        with (
            ByteSource(archive) as source,
            tarfile.open(
                fileobj=cast(IO[bytes], source), mode="r|", bufsize=_PIECE_BYTES, tarinfo=_Member
            ) as tar,
        ):
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is None:
                    skipped += not member.isdir()
                    continue
                label = f"{archive.label}!{printable(member.name)}"
                head = stream.read(HEAD_BYTES)
                if not _may_be_read(InputFile(label, archive.path, head), head, member.size):
                    skipped += 1
                    continue
                place = _free_place(folder, member.name, len(found))
                require_room(folder, member.size, label)
                # Before it is whole: what there is of it may be of use.
                found.append(InputFile(label, place))
                _write(place, head, stream)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise TraceFormatError(
            message("refused.archive", error=str(error)),
            where=archive.label,
            remedy=message("advice.copy_again"),
        ) from error
    return skipped


def _may_be_read(file: InputFile, head: bytes, size: int) -> bool:
    if size <= _SMALL_BYTES or head.startswith(_MAGIC):
        return True
    return classify(file) not in (UNKNOWN, ARCHIVE)


def _free_place(folder: Path, name: str, number: int) -> Path:
    """Return a path that is not in use: two members may have one name."""
    place = safe_place(folder, name)
    if place.exists() or any(parent.is_file() for parent in place.parents):
        place = safe_place(folder / f"again-{number}", name)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _write(place: Path, head: bytes, stream: IO[bytes]) -> None:
    with place.open("wb") as target:
        target.write(head)
        while piece := stream.read(_PIECE_BYTES):
            target.write(piece)

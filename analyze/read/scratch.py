"""Files that exist while an input is read: unpacked members, and the ranks of merged files."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.message import message

_SPARE_BYTES = 1 << 30
"""Room that stays free on the disk of the temporary files."""
_LONGEST_NAME = 100
"""File systems end at 255 bytes, and a character may have four."""


class Scratch(AbstractContextManager["Scratch"]):
    """A folder for temporary files, made when the first is asked for and removed at the end."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def new_folder(self) -> Path:
        """Return a new empty folder."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="meshscope-")
        self._count += 1
        folder = Path(self._folder.name) / f"{self._count:05d}"
        folder.mkdir()
        return folder

    def new_file(self) -> Path:
        """Return the path of a new file."""
        return self.new_folder() / "events.json"


def require_room(folder: Path, size: int, where: str) -> None:
    """Refuse to write what would fill the disk.

    Raises:
        TraceFormatError: There is not enough room for ``size`` bytes.
    """
    free = shutil.disk_usage(folder).free
    if size + _SPARE_BYTES > free:
        raise TraceFormatError(
            message(
                "refused.no_room",
                needed_bytes=size,
                folder=str(folder.parent.parent),
                free_bytes=free,
            ),
            where=where,
            remedy=message("advice.tmpdir"),
        )


def safe_place(folder: Path, name: str) -> Path:
    """Return where below a folder a member of an archive goes, whatever it is called.

    Folders stay apart, because some formats look for files beside others.
    """
    parts = [
        "".join(c if c.isprintable() and c not in '\\:*?"<>|' else "_" for c in part)
        for part in PurePosixPath(name).parts
        if part not in ("/", "//", "..")
    ]
    return folder.joinpath(*(part[-_LONGEST_NAME:] for part in parts or ["member"]))

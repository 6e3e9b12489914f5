"""Which files an input path stands for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import printable

from ..wording.limits import Limit, limit_text
from ..wording.message import message
from .detect import WHAT_WE_READ
from .files import InputFile

_SHOWN = 4


class Found(msgspec.Struct, frozen=True):
    """The files behind a path."""

    files: list[InputFile]
    limits: list[Limit] = msgspec.field(default_factory=list)
    """What was not looked at."""


def find_files(path: Path) -> list[InputFile]:
    """Return the files that ``look`` finds.

    Raises:
        TraceFormatError: Nothing is there.
    """
    return look(path).files


def look(path: Path) -> Found:
    """Return the files that a file, a folder (with all below it) or a glob stands for, sorted.

    In a folder, links are not followed: one that leads out of it would read what nobody
    named, one that stays inside names a file that is found anyway.

    Raises:
        TraceFormatError: Nothing is there.
    """
    if path.is_file():
        return Found([input_file(path)])
    if path.exists() and not path.is_dir():
        raise TraceFormatError(
            message("refused.no_regular_file"),
            where=str(path),
            remedy=message("advice.write_to_file"),
        )
    if not path.is_dir():
        return Found([input_file(one) for one in _expand(path)])
    walk = _Walk(path)
    if walk.files:
        return Found([input_file(one) for one in sorted(walk.files)], walk.limits())
    what = message("refused.no_file") if walk.limits() else message("refused.empty_folder")
    where = f"{path} ({' '.join(map(limit_text, walk.limits()))})" if walk.limits() else str(path)
    raise TraceFormatError(what, where=where, remedy=WHAT_WE_READ)


class _Walk:
    """The files below a folder, however deep it is.

    Args:
        root: The folder, which may be a link itself.
    """

    def __init__(self, root: Path) -> None:
        self.files: list[Path] = []
        self._unlisted: list[str] = []
        self._links_out = 0
        self._dangling = 0
        self._others = 0
        inside = os.path.realpath(root)
        waiting = [str(root)]
        while waiting:
            self._list(waiting.pop(), inside, waiting)

    def limits(self) -> list[Limit]:
        """Return what was not looked at."""
        found: list[Limit] = []
        if self._links_out:
            found.append(message("missing.links_out", count=self._links_out))
        if self._dangling:
            found.append(message("missing.dangling_links", count=self._dangling))
        if self._others:
            found.append(message("missing.special_files", count=self._others))
        found += [message("missing.unlisted_folder", folder=one) for one in self._unlisted[:_SHOWN]]
        if len(self._unlisted) > _SHOWN:
            found.append(message("missing.more_folders", count=len(self._unlisted) - _SHOWN))
        return found

    def _list(self, folder: str, inside: str, waiting: list[str]) -> None:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._take(entry, inside, waiting)
        except OSError as error:
            self._unlisted.append(f"{printable(folder)} ({error.strerror})")

    def _take(self, entry: os.DirEntry[str], inside: str, waiting: list[str]) -> None:
        if entry.is_symlink():
            target = os.path.realpath(entry.path)
            if os.path.commonpath([inside, target]) != inside:
                self._links_out += 1
            else:
                self._dangling += not os.path.exists(target)
        elif entry.is_dir():
            waiting.append(entry.path)
        elif entry.is_file():
            self.files.append(Path(entry.path))
        else:
            self._others += 1


def input_file(path: Path) -> InputFile:
    """Return a file on disk; messages name it by its path."""
    return InputFile(printable(str(path)), path)


def _expand(pattern: Path) -> list[Path]:
    """Return the files that match a glob; its folders above the first wildcard are literal."""
    parts = pattern.parts
    wild = next((i for i, part in enumerate(parts) if re.search(r"[*?\[]", part)), None)
    if wild is None:
        raise TraceFormatError(
            message("refused.no_path"), where=str(pattern), remedy=message("advice.path")
        )
    found = sorted(p for p in Path(*parts[:wild]).glob("/".join(parts[wild:])) if p.is_file())
    if not found:
        raise TraceFormatError(
            message("refused.pattern"), where=str(pattern), remedy=message("advice.pattern")
        )
    return found

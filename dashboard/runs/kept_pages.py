"""What pages of a run say, kept beside its analysis: the account that they need is not measured again for them."""

from __future__ import annotations

import json
import logging
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import write_json
from meshscope.probe.schema.reading import open_file

from .page_maker import PageMaker, StillMeasuredError

_MOST_BYTES = 1 << 26
"""Larger values are neither kept nor read."""
_MOST_VALUES = 40
"""Pages and paths that one person looks at: bounds the folder."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptPages:
    """Values by name in the folder of one analysis; a value of another analysis does not count.

    Whoever can write the run can write them too, as its analysis: pages draw them as data.
    """

    folder: Path
    """Of the analysis."""
    analysis: str
    """Hash of what the analysis is of, and of what it says."""
    maker: PageMaker | None = None
    """Who makes values of a large run; None where the server does."""

    def awaited(self, name: str, *, begin: bool = True) -> dict[str, Any] | None:
        """Return a value; None where the server has to make it.

        Args:
            name: Which one.
            begin: Whether a process is to make it, where none does.

        Raises:
            StillMeasuredError: A process makes it.
        """
        found = self.read(name)
        if found is None and self.maker is not None:
            if self.maker.is_making() or (begin and self.maker.begin()):
                raise StillMeasuredError
            # It may have been kept between the two looks.
            found = self.read(name)
        return found

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a value; None if none is kept, or it is damaged."""
        with suppress(MeshscopeError, OSError, ValueError, RecursionError):
            with open_file(self._place(name), most_bytes=_MOST_BYTES) as file:
                found = json.loads(file.read())
            if isinstance(found, dict) and found.get("analysis") == self.analysis:
                value = found.get("value")
                return value if isinstance(value, dict) else None
        return None

    def keep(self, name: str, value: dict[str, Any]) -> None:
        """Keep a value of JSON types; nothing where the folder is gone, or others may write it."""
        try:
            found = self.folder.lstat()
            is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022
            if is_private and len(list(self.folder.glob("page-*"))) < _MOST_VALUES:
                write_json(self._place(name), {"analysis": self.analysis, "value": value})
        except (OSError, TypeError, ValueError) as error:
            _LOG.warning("%s is not kept in %s: %s", name, self.folder, error)

    def _place(self, name: str) -> Path:
        return self.folder / f"page-{name}.json"

"""What pages of a run say, kept beside its analysis: the account that they need is not measured again for them."""

from __future__ import annotations

import json
import logging
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import write_json
from meshscope.probe.schema.reading import open_file

from .clock import monotonic_s

_MOST_BYTES = 1 << 26
"""Larger values are neither kept nor read."""
_MOST_VALUES = 40
_PATIENCE_S, _LOOK_S = 120.0, 0.1
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
    maker: subprocess.Popen[str] | None = None
    """The process that still keeps values, if there is one."""

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a value; None if none is kept, or it is damaged. While a process keeps some, it is waited for."""
        until_s = monotonic_s() + _PATIENCE_S
        while True:
            is_last = self.maker is None or self.maker.poll() is not None
            found = self._kept(name)
            if found is not None or is_last or monotonic_s() > until_s:
                return found
            self._wait()

    def _wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            if self.maker is not None:
                self.maker.wait(_LOOK_S)

    def _kept(self, name: str) -> dict[str, Any] | None:
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

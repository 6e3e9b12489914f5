"""The two ways to keep the probe off: a variable, and a file in the run directory.

The variable is read when a process starts. The file is looked for while a rank
records, so it stops what runs: within ``LOOK_NS`` records cease, and the hooks go
when the main thread next runs Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..clock import now_ns
from .identity import DISABLE_VARIABLE

DISABLE_FILE = "disable"
LOOK_NS = 2_000_000_000
"""Longest time between two looks for the file."""


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Tell whether the variable keeps the probe off."""
    return environment.get(DISABLE_VARIABLE, "") not in ("", "0")


def why_disabled(environment: Mapping[str, str], run_path: Path | None) -> str:
    """Return why nothing may be recorded, one clause; empty if it may."""
    if is_disabled(environment):
        return f"{DISABLE_VARIABLE} is set in the environment of this process"
    if run_path is not None and has_disable_file(run_path):
        return f"there is a file {DISABLE_FILE!r} in {run_path}"
    return ""


def has_disable_file(run_path: Path) -> bool:
    """Tell whether the run directory holds the file; whatever it is counts."""
    try:
        (run_path / DISABLE_FILE).lstat()
    except OSError:
        return False
    return True


class DisableWatch:
    """Looks for the file of a run now and then, and acts once."""

    def __init__(self, run_path: Path, act: Callable[[], None]) -> None:
        self._run_path = run_path
        self._act = act
        self._looked_ns = now_ns()
        self._acted = False

    def look(self) -> None:
        """Look if it is time; called every now and then by a thread that may touch files."""
        if self._acted or now_ns() - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now_ns()
        if has_disable_file(self._run_path):
            self._acted = True
            self._act()

"""A management library for devices that are not there, compiled once and driven by a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml_stub.c"
LIBRARY = "libnvidia-ml.so.1"
NVLINK_TX, NVLINK_RX, PCIE_TX, PCIE_RX = 138, 139, 197, 198
NVLINK_SPEED = 90
ALL_LINKS = -1
"""Scope of a field for all links, as the stub writes it."""


def missing_compiler() -> str:
    """Return why the stub cannot be compiled here; empty if it can."""
    return "" if compiler() else "there is no C compiler (cc or gcc)"


def compiler() -> str | None:
    """Return the C compiler of this machine."""
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path, omit: Sequence[str] = ()) -> Path:
    """Compile the library into a folder, without some of its symbols; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(str(compiler()), "-O1", "-shared", "-fPIC", "-Wall", "-Werror"),
        *("-o", str(folder / LIBRARY), str(SOURCE)),
        *(f"-DOMIT_{symbol}" for symbol in omit),
    ]
    subprocess.run(command, check=True)
    return folder


class Scenario:
    """The file that drives a stub; each call changes it in one step."""

    def __init__(self, path: Path, devices: int = 8) -> None:
        self.path = path
        self._lines = [f"devices {devices}"]
        self._write()

    def add(self, *lines: str) -> Scenario:
        """Add rules; of two that contradict each other the later one holds."""
        self._lines += lines
        self._write()
        return self

    def remove(self, line: str) -> None:
        """Take a rule back."""
        self._lines.remove(line)
        self._write()

    def environment(self, library: Path) -> Mapping[str, str]:
        """Return the variables of a process that finds the stub in a folder."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "NVML_STUB_SCENARIO": str(self.path),
        }

    def _write(self) -> None:
        draft = self.path.with_suffix(".draft")
        draft.write_text("\n".join([*self._lines, ""]), encoding="ascii")
        draft.replace(self.path)

"""Real file systems that are full, read-only, slow, broken or hang, in a mount namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.ports import free_port

DRIVER = Path(__file__).parent / "driver.py"
_FUSE = Path("/dev/fuse")


@dataclass(frozen=True, kw_only=True)
class Disk:
    """What is mounted."""

    kind: str
    """``tmpfs``, or ``fuse`` for the server of this folder."""
    options: str = ""
    """Of tmpfs."""
    delay_s: float = 0.0
    """By which the server delays each change."""


def missing(disk: Disk) -> str:
    """Return why this machine cannot mount a disk for a test; empty if it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    if disk.kind == "fuse" and not os.access(_FUSE, os.R_OK | os.W_OK):
        return f"{_FUSE} cannot be opened"
    tried = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"no mount namespace: {tried.stderr.strip()}"


def run_on(
    disk: Disk, folder: Path, command: Sequence[str], *, ranks: int, environment: dict[str, str]
) -> list[str]:
    """Run the ranks of a job with a disk at ``folder/disk``; return what they printed.

    Afterwards the disk's content is at ``folder/kept``. In the environment of a rank,
    ``DISK_FAULT`` names a file whose content is what the server does with each change from
    now on: the name of an error, or ``hang``. The file with ``.hit`` behind its name is
    there once it did.
    """
    (folder / "disk").mkdir()
    spec = {"disk": asdict(disk), "folder": str(folder), "command": [*command], "ranks": ranks}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ran = subprocess.run(
        ["unshare", "-rm", sys.executable, str(DRIVER), json.dumps(spec)],
        env={**os.environ, **environment, **meeting},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return [(folder / f"rank{rank}.txt").read_text() for rank in range(ranks)]

"""Real file systems that are full, read-only, slow, broken or hang, in a mount namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.disks.driver import PATIENCE_S, run_job
from tests.distributed.forked_ranks import join_ranks, meeting, printed, start_ranks

MOUNTING_S = 160.0
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
    disk: Disk,
    folder: Path,
    target: Callable[..., object],
    arguments: Sequence[object],
    *,
    ranks: int,
    environment: dict[str, str],
) -> list[str]:
    """Run the ranks of a job with a disk at ``folder/disk``; return what they printed.

    Afterwards the disk's content is at ``folder/kept``. In the environment of a rank,
    ``DISK_FAULT`` names a file whose content is what the server does with each change from
    now on: the name of an error, or ``hang``. The file with ``.hit`` behind its name is
    there once it did.
    """
    (folder / "disk").mkdir()
    job = (asdict(disk), folder, (target, arguments), ranks, environment | meeting())
    codes = join_ranks(start_ranks(run_job, [job]), PATIENCE_S + MOUNTING_S)
    return printed(folder, ranks, codes)

"""Mounts a disk, runs the ranks of a job on it, keeps what they left; see ``run_on``."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.distributed.forked_ranks import be_rank

SERVER = Path(__file__).with_name("fuse.py")
PATIENCE_S = 240.0
NEW_NAMESPACES = 0x10000000 | 0x00020000
"""Of users and of mounts: CLONE_NEWUSER and CLONE_NEWNS."""


def run_job(
    disk: dict[str, Any],
    folder: Path,
    job: tuple[Callable[..., object], Sequence[object]],
    count: int,
    environment: dict[str, str],
) -> None:
    """Run one job on one disk in a namespace of this process; fail as its ranks do."""
    fault, at = folder / "fault", folder / "disk"
    os.environ.update(environment)
    enter_namespace()
    server = mount(disk, at, fault)
    try:
        codes = run_ranks(job, count, folder, fault)
        shutil.copytree(at, folder / "kept")
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)
        if server is not None:
            server.kill()
            server.wait()
    sys.exit(max(map(abs, codes)))


def enter_namespace() -> None:
    """Make this process, which has one thread, the root of namespaces of its own."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NAMESPACES):
        raise OSError(ctypes.get_errno(), "unshare")
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny", encoding="ascii")
    (own / "uid_map").write_text(f"0 {user} 1", encoding="ascii")
    (own / "gid_map").write_text(f"0 {group} 1", encoding="ascii")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def mount(disk: dict[str, Any], at: Path, fault: Path) -> subprocess.Popen[bytes] | None:
    """Mount the disk; return its server, if it has one."""
    if disk["kind"] == "tmpfs":
        options = ["-o", disk["options"]] if disk["options"] else []
        subprocess.run(["mount", "-t", "tmpfs", *options, "none", str(at)], check=True)
        return None
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(at), str(disk["delay_s"]), str(fault)]
    )
    end = time.monotonic() + PATIENCE_S
    while not os.path.ismount(at):
        assert server.poll() is None, "the file system could not be mounted"
        assert time.monotonic() < end, "the file system is not there"
        time.sleep(0.02)
    return server


def run_ranks(
    job: tuple[Callable[..., object], Sequence[object]], count: int, folder: Path, fault: Path
) -> list[int]:
    """Run the job, which meets where the environment says; return the exit codes of its ranks."""
    os.environ["DISK_FAULT"] = str(fault)
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=be_rank, args=(rank, count, folder / f"rank{rank}.txt", *job))
        for rank in range(count)
    ]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + PATIENCE_S
    for rank in ranks:
        rank.join(max(end - time.monotonic(), 0.1))
    codes = [124 if rank.exitcode is None else rank.exitcode for rank in ranks]
    # Nobody on a disk that hangs can be ended before it goes on.
    fault.unlink(missing_ok=True)
    for rank in ranks:
        rank.kill()
        rank.join()
    return codes

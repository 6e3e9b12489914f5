"""Mounts a disk, runs the ranks of a job on it, keeps what they left; see ``run_on``."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SERVER = Path(__file__).with_name("fuse.py")
PATIENCE_S = 240.0


def mount(disk, at, fault):
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


def run_ranks(command, count, folder, fault):
    """Run the job, which meets where the environment says; return the exit codes of its ranks."""
    base = {
        **os.environ,
        "DISK_FAULT": str(fault),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    ranks = []
    for rank in range(count):
        with open(folder / f"rank{rank}.txt", "w", encoding="utf-8") as output:
            ranks.append(
                subprocess.Popen(
                    command,
                    env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    end = time.monotonic() + PATIENCE_S
    try:
        return [rank.wait(max(end - time.monotonic(), 0.1)) for rank in ranks]
    finally:
        # Nobody on a disk that hangs can be ended before it goes on.
        fault.unlink(missing_ok=True)
        for rank in ranks:
            rank.kill()
            rank.wait()


def main(spec):
    """Run one job on one disk; fail as its ranks do."""
    folder = Path(spec["folder"])
    fault, at = folder / "fault", folder / "disk"
    server = mount(spec["disk"], at, fault)
    try:
        codes = run_ranks(spec["command"], spec["ranks"], folder, fault)
        shutil.copytree(at, folder / "kept")
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)
        if server is not None:
            server.kill()
            server.wait()
    for rank, code in enumerate(codes):
        if code:
            print(f"rank {rank} ended with {code}:\n{(folder / f'rank{rank}.txt').read_text()}")
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""What the account of every step costs, and whether it adds up to the truth; prints figures, asserts none.

    python bench/every_step.py                 256 ranks of 200 steps
    python bench/every_step.py 1024x1000       another size (4 minutes on two cores)

A synthetic job of TP4 x PP4 x DPn is summarized, then accounted for by one worker and by two. CPU seconds and memory are
those of the command with one worker: of others its system does not tell it.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import summaries

SIZE = "256x200"


def main(size=SIZE):
    """Print the figures of one size."""
    ranks, steps = map(int, size.split("x"))
    print(
        " ranks  steps     records  workers  windows   wall s    CPU s  largest MB  gain found  true"
    )
    with tempfile.TemporaryDirectory() as folder:
        job = summaries.generate(ranks, steps, folder)
        run = Path(job["path"])
        _command("summarize", run)
        for workers in (1, 2):
            for file in run.glob("summaries/accounts/*.json"):
                file.unlink()
            began, before = time.perf_counter(), _children()
            words = ("--every-step", "--workers", str(workers), "--format", "json")
            found = json.loads(_command("diagnose", run, *words))
            wall_s, cpu_s = time.perf_counter() - began, _children()[0] - before[0]
            (slow,) = (one for one in found["causes"] if one["kind"] == "straggler_rank")
            told = slow["removal_gain_frac"] * found["step_time_ns"] / 1e6
            used = f"{cpu_s:8.1f} {_children()[1] / 1024:11,.0f}" if workers == 1 else " " * 20
            print(
                f"{ranks:6,} {steps:6,} {job['rows']:11,} {workers:8} {len(found['windows']):8}"
                f" {wall_s:8.1f} {used}"
                f" {told:7.3f} ms {job['gain_ns'] / 1e6:.3f} ms"
            )


def _command(*words):
    """Return what the command writes."""
    command = [sys.executable, "-m", "meshscope", *map(str, words)]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout


def _children():
    """Return CPU seconds of all processes that ended, and the memory of the largest, KiB."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss


if __name__ == "__main__":
    main(*sys.argv[1:])

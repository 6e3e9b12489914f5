"""What a second CPU brings when the Kineto files of several ranks are ingested.

One worker on one CPU and two workers on two are measured by turns. Wall time tells the
speed-up only on a machine at rest; CPU time tells it on any: nothing can be done before the
longest chain of work that waits for each other is, which is the start of the processes,
then the busiest worker, then what the owner does with the results. The hash of the content is
taken beside all that.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from inputs.replicated import source_trace, write_ranks

RANKS, RANK_MB = 8, 250
TURNS = 3
_LOOK_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROGRAM = """
import os, sys, time
from pathlib import Path
from meshscope.analyze.load.ingest import Keeping, ingest
if __name__ == "__main__":
    job, runs, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    wall, cpu, chain = time.perf_counter(), time.process_time(), time.thread_time()
    ingest(job, Keeping(runs_dir=runs, workers=workers))
    print(time.perf_counter() - wall, time.process_time() - cpu, time.thread_time() - chain)
"""


class Cost(NamedTuple):
    """What ingesting a job took, in seconds."""

    wall_s: float
    cpu_s: float
    """CPU time of all processes."""
    chain_s: float
    """CPU time of the longest chain of work of which each part waits for the one before."""


def main() -> None:
    """Print the figures."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        print("there is only one CPU, so there is no ratio of two to one")
        return
    header, events = source_trace()
    with tempfile.TemporaryDirectory() as name:
        job = Path(name) / "job"
        job.mkdir()
        write_ranks(job, header, events, ranks=RANKS, size=RANK_MB * 1_000_000)
        costs: dict[int, list[Cost]] = {1: [], 2: []}
        for _ in range(TURNS):
            for count, found in costs.items():
                found.append(_ingest(job, Path(name) / "runs", cpus[:count]))
    _print(costs[1], costs[2])


def _print(one: list[Cost], two: list[Cost]) -> None:
    """Print how the costs of one CPU and of two compare, the best of each."""
    label = f"{RANKS} ranks of {RANK_MB} MB"
    walls = [min(cost.wall_s for cost in costs) for costs in (one, two)]
    cpus = [min(cost.cpu_s for cost in costs) for costs in (one, two)]
    chain_s = min(cost.chain_s for cost in two)
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"{label}, wall time of one CPU over two: {walls[0] / walls[1]:.2f}", end=" ")
    print(f"({walls[0]:.1f} s, {walls[1]:.1f} s, {load})  must be >= 1.7 on a machine at rest")
    print(f"… CPU time of two over one: {cpus[1] / cpus[0]:.2f} ({cpus[0]:.1f} s, {cpus[1]:.1f} s)")
    print(f"… CPU time of one over the longest chain of two: {cpus[0] / chain_s:.2f}", end=" ")
    print(f"({chain_s:.1f} s)  must be >= 1.7")


def _ingest(job: Path, runs: Path, cpus: list[int]) -> Cost:
    """Ingest a job in a program of its own, with a worker for each CPU that it may use."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(_PROGRAM)
        script.flush()
        command = [sys.executable, script.name, str(job), str(runs), str(len(cpus))]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        ) as program:
            started, workers = _watch(program)
            output = program.communicate()[0]
    if program.returncode:
        raise SystemExit(f"ingesting failed with {program.returncode}")
    shutil.rmtree(runs)
    wall_s, cpu_s, own_s = map(float, output.split()[-3:])
    others_s = sum(started) + sum(workers)
    return Cost(wall_s, cpu_s + others_s, sum(started) + max(workers, default=0) + own_s)


def _watch(program: subprocess.Popen[str]) -> tuple[list[float], list[float]]:
    """Return the CPU seconds of the processes that a program starts, and of those that they start.

    The first start the workers. What they do after the last look at them is not seen.
    """
    seen: dict[int, tuple[int, float]] = {}
    while program.poll() is None:
        seen |= _of_session(program.pid)
        time.sleep(_LOOK_S)
    seen.pop(program.pid, None)
    started = [cpu_s for parent, cpu_s in seen.values() if parent == program.pid]
    workers = [cpu_s for parent, cpu_s in seen.values() if parent in seen]
    return started, workers


def _of_session(session: int) -> dict[int, tuple[int, float]]:
    """Return parent and CPU seconds of each process of a session."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            ticks = int(fields[11]) + int(fields[12])
            found[int(folder.name)] = (int(fields[1]), ticks / _TICKS_PER_S)
    return found


if __name__ == "__main__":
    main()

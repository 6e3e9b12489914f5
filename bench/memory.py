"""What the probe adds to the resident memory of a trainer; fails over its budget.

    python bench/memory.py [--pairs N]

The same small trainer runs with and without the probe, in turns, each in a process of its
own: the same steps, long enough that the ring was filled and written to disk. What
counts is the median difference of all resident pages at the end, those of shared libraries
and of the ring's file included. Pages of files are separated, because all ranks of a host
share those of libraries. A process group that sends nothing stands in for the network.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile

BUDGET_MB = 64
STEPS = 600
"""With 120 collectives in each, and a record for the begin and one for the end: two laps of the ring."""

_RESIDENT = """
def resident_mb():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss:")) / 1024

def of_files_mb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssFile:")) / 1024
"""

_TRAINER = (
    _RESIDENT
    + """
import sys
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.set_num_threads(1)
run, steps = sys.argv[1], int(sys.argv[2])
session = None
if run:
    from meshscope import probe
    session = probe.attach(run)
dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(16, 64)
for _ in range(steps):
    optimizer.zero_grad()
    model(x).sum().backward()
    for _ in range(60):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
if session is not None:
    session.flush()
print(resident_mb(), of_files_mb())
"""
)

_PARTS = {
    "import of the probe": "import meshscope.probe",
    "... and numpy": "import meshscope.probe, numpy",
    "... and nanoarrow (writer thread)": "import meshscope.probe, numpy, nanoarrow.ipc",
}


def child_mb(program: str, *arguments: str) -> list[float]:
    """Return the numbers that a program prints which runs in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def part_mb(statement: str) -> float:
    """Return what a statement adds to a process that has imported nothing."""
    (added,) = child_mb(
        f"{_RESIDENT}\nbefore = resident_mb()\n{statement}\nprint(resident_mb() - before)"
    )
    return added


def trainer_mb(*, watched: bool) -> list[float]:
    """Return the resident memory of a trainer at its end, and how much of it are pages of files."""
    with tempfile.TemporaryDirectory() as folder:
        return child_mb(_TRAINER, f"{folder}/run" if watched else "", str(STEPS))


def main() -> bool:
    """Print the figures; return whether the probe takes more than its budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    for name, statement in _PARTS.items():
        print(f"{name:32} {part_mb(statement):6.1f} MB, in an empty process")
    pairs = [(trainer_mb(watched=False), trainer_mb(watched=True)) for _ in range(arguments.pairs)]
    without, watched = (
        statistics.median(own[0] for own in side) for side in zip(*pairs, strict=True)
    )
    added, of_files = (statistics.median(on[n] - off[n] for off, on in pairs) for n in (0, 1))
    print(f"{'trainer without and with':32} {without:6.1f} {watched:6.1f} MB")
    print(
        f"{'added pages of files':32} {of_files:6.1f} MB, the ring and libraries that ranks share"
    )
    verdict = "within" if added <= BUDGET_MB else "over"
    print(f"memory budget {BUDGET_MB} MB a rank: {verdict} ({added:.1f} MB)")
    return added > BUDGET_MB


if __name__ == "__main__":
    raise SystemExit(main())

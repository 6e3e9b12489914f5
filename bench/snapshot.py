"""What reading a memory snapshot of 100 MB costs: CPU time and memory of a fresh process.

The snapshot is made in the form that PyTorch dumps: actions of the allocator, each with a
stack of frames that others share. Beside the figure stands what it must be.
"""

import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ACTIONS, FRAMES, DEPTH, LIVE = 610_000, 3_000, 20, 500
MOST_CPU_S = 10

_MEASURE = """
import os, resource, sys
from pathlib import Path
from meshscope.analyze import load_trace
before = sum(os.times()[:4])
load_trace(Path(sys.argv[1]))
print(sum(os.times()[:4]) - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def write_snapshot(path: Path, actions: int = ACTIONS) -> None:
    """Write a snapshot of so many actions, 180 bytes each."""
    chance = random.Random(1)
    frames = [
        {"name": f"function_{n}", "filename": f"/torch/nn/modules/m{n % 97}.py", "line": n}
        for n in range(FRAMES)
    ]
    live: list[tuple[int, int]] = []
    trace = []
    for number in range(actions):
        if len(live) < LIVE or chance.random() < 0.5:
            address, size = 0x7F00_0000_0000 + 512 * number, chance.randrange(512, 1 << 24)
            live.append((address, size))
            action = "alloc"
        else:
            address, size = live.pop(chance.randrange(len(live)))
            action = "free_completed"
        first = chance.randrange(FRAMES - DEPTH)
        entry = {"action": action, "addr": address, "size": size, "stream": 0}
        trace.append(entry | {"time_us": 10**15 + number, "frames": frames[first : first + DEPTH]})
    blocks = [{"address": at, "size": size, "state": "active_allocated"} for at, size in live]
    segment = {"device": 0, "address": 0, "total_size": 1 << 34, "segment_pool_id": (0, 0)}
    snapshot = {"segments": [segment | {"blocks": blocks}], "device_traces": [trace]}
    path.write_bytes(pickle.dumps(snapshot, 4))


def main() -> int:
    """Print the figures; return 1 if reading failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank0.pickle")
        write_snapshot(path)
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return 1
        cpu_s, resident = map(float, done.stdout.split())
        size = path.stat().st_size / 1e6
    print(
        f"{size:.0f} MB, {ACTIONS:,} actions: {cpu_s:.1f} CPU s (must be <= {MOST_CPU_S} for 100 MB), "
        f"{resident:.0f} MB resident"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

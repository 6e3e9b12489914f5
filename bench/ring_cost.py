"""What recording costs a training process: CPU time per record, drain, memory.

Figures are the best and the median of several rounds; kinds alternate within a
round, so that a busy spell of the machine hits all of them alike.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from meshscope.probe.recorder import NullRecorder, Recorder, StorageSettings

ROUNDS = 11
CALLS = 4000

_RSS = """
import os
def rss():
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 2**20
before = rss()
{statement}
print(f'{{rss() - before:.1f}}')
"""

_FULL_RING = """
import pathlib, sys
from meshscope.probe.recorder import Recorder
recorder = Recorder(pathlib.Path(sys.argv[1]), 0)
for step in range(65536):
    recorder.record_step(step, 1, 2)
recorder.flush()
"""


BUDGET_NS = 150


def main() -> bool:
    """Print the figures; return whether a record exceeds its budget."""
    with tempfile.TemporaryDirectory() as folder:
        # A long wake time: the writer thread must not run inside a timed loop.
        settings = StorageSettings(wake_s=3600.0)
        recorder = Recorder(Path(folder), 0, settings=settings)
        try:
            worst_ns = _print_calls(recorder)
            _print_drain(recorder)
        finally:
            recorder.close()
    _print_memory()
    verdict = "within" if worst_ns <= BUDGET_NS else "over"
    print(f"record budget {BUDGET_NS} ns: {verdict} ({worst_ns:.0f} ns)")
    return worst_ns > BUDGET_NS


def _print_calls(recorder: Recorder) -> float:
    """Print the CPU time of each kind of record; return the best of the dearest, ns."""
    nothing = NullRecorder(0)
    loops = {
        "step": _step(recorder),
        "span": _span(recorder),
        "collective issue": _collective(recorder),
        "p2p issue": _p2p(recorder),
        "completion": _completion(recorder),
        "collective issue, NullRecorder": _collective(nothing),
    }
    costs: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            begin = time.thread_time_ns()
            loop()
            costs[name].append((time.thread_time_ns() - begin) / CALLS)
        recorder.flush()
    for name, figures in costs.items():
        print(f"{name:32} {min(figures):6.0f} ns best {statistics.median(figures):6.0f} ns median")
    return max(min(figures) for figures in costs.values())


def _step(recorder: Recorder) -> Callable[[], None]:
    def loop() -> None:
        for step in range(CALLS):
            recorder.record_step(step, 1_000, 2_000, 4096)

    return loop


def _span(recorder: Recorder) -> Callable[[], None]:
    def loop() -> None:
        for microbatch in range(CALLS):
            recorder.record_span(1, 1_000, 2_000, 1_500, 3, 0, microbatch)

    return loop


def _collective(recorder: Recorder) -> Callable[[], None]:
    def loop() -> None:
        for seq in range(CALLS):
            recorder.issue_collective(1, 0, seq, 1 << 20, 2, 1_000)

    return loop


def _p2p(recorder: Recorder) -> Callable[[], None]:
    def loop() -> None:
        for seq in range(CALLS):
            recorder.issue_p2p(1, 0, 3, seq, 1 << 20, 2, 1_000, seq, 0)

    return loop


def _completion(recorder: Recorder) -> Callable[[], None]:
    def loop() -> None:
        for event_id in range(CALLS):
            recorder.complete(event_id, 3_000, 1_000, 2_000)

    return loop


def _print_drain(recorder: Recorder) -> None:
    fill = _collective(recorder)
    costs = []
    for _ in range(ROUNDS):
        fill()
        begin = time.thread_time_ns()
        recorder.flush()
        costs.append((time.thread_time_ns() - begin) / CALLS)
    print(
        f"{'drain to disk, background':32} {min(costs):6.0f} ns best {statistics.median(costs):6.0f} ns median, per record"
    )


def _print_memory() -> None:
    statements = {
        "import of the recorder": "import meshscope.probe.recorder",
        "… and numpy": "import meshscope.probe.recorder, numpy",
        "… and pyarrow (writer thread)": "import meshscope.probe.recorder, numpy, pyarrow",
        "… and a ring that was full": _FULL_RING,
    }
    for name, statement in statements.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _RSS.format(statement=statement), folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"{name:32} {done.stdout.strip():>6} MB resident")


if __name__ == "__main__":
    raise SystemExit(main())

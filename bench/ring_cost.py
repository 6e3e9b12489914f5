"""What recording costs a training process: CPU time per record, and to move it to disk.

Figures are the best and the median of several rounds; kinds alternate within a
round, so that a busy spell of the machine hits all of them alike. The loop around the
calls is measured beside them and taken off. The least that any such record could take is a call
that stores one number in the next slot: it is printed as the floor.
"""

import itertools
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from meshscope.probe.recording.open_recorder import NullRecorder
from meshscope.probe.recording.record_heads import collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings

ROUNDS = 41
CALLS = 1000
_FILLS = 4
NOW_NS, PASS_NS = 8_123_456_789_012_345, 18_000_000
"""Times as large as those of a machine that has been up for months: larger numbers cost more."""

BUDGET_NS = 150
_store_number = struct.Struct("<q").pack_into


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
    verdict = "within" if worst_ns <= BUDGET_NS else "over"
    print(f"record budget {BUDGET_NS} ns: {verdict} ({worst_ns:.0f} ns)")
    return worst_ns > BUDGET_NS


def _print_calls(recorder: Recorder) -> float:
    """Print the CPU time of each kind of record; return the best of the dearest, ns."""
    loops = {
        "step": _step(recorder),
        "span": _span(recorder),
        "collective issue": _collective(recorder),
        "p2p issue": _p2p(recorder),
        "completion": _completion(recorder),
    }
    beside = {
        "floor": _floor(Smallest()),
        "collective issue, NullRecorder": _collective(NullRecorder(0)),
        "loop": _nothing,
    }
    costs: dict[str, list[float]] = {name: [] for name in (*loops, *beside)}
    for _ in range(ROUNDS):
        for name, loop in (loops | beside).items():
            begin = time.thread_time_ns()
            loop()
            costs[name].append((time.thread_time_ns() - begin) / CALLS)
        recorder.flush()
    empty = costs.pop("loop")
    best = {name: min(figures) - min(empty) for name, figures in costs.items()}
    for name, figures in costs.items():
        median = statistics.median(figures) - statistics.median(empty)
        print(f"{name:32} {best[name]:6.0f} ns best {median:6.0f} ns median")
    return max(best[name] for name in loops)


class Smallest:
    """Stores the least: one number in the next slot."""

    def __init__(self) -> None:
        self._places = zip(itertools.count(), itertools.cycle(range(0, 1 << 20, 128)))
        self._slots = bytearray(1 << 20)

    def record(self) -> None:
        """Store a number."""
        seq, place = next(self._places)
        _store_number(self._slots, place, seq)


def _nothing() -> None:
    for _ in range(CALLS):
        pass


def _floor(smallest: Smallest) -> Callable[[], None]:
    def loop() -> None:
        for _ in range(CALLS):
            smallest.record()

    return loop


def _step(recorder: Recorder) -> Callable[[], None]:
    def loop() -> None:
        for step in range(CALLS):
            recorder.record_step(step, NOW_NS, PASS_NS, 4096)

    return loop


def _span(recorder: Recorder) -> Callable[[], None]:
    head = span_head(1, 3, 0)

    def loop() -> None:
        for microbatch in range(CALLS):
            recorder.record_span(head, NOW_NS, PASS_NS, PASS_NS, microbatch)

    return loop


def _collective(recorder: Recorder) -> Callable[[], None]:
    head = collective_head(1, 0, 2)

    def loop() -> None:
        for seq in range(CALLS):
            recorder.issue_collective(head, seq, 1 << 25, NOW_NS)

    return loop


def _p2p(recorder: Recorder) -> Callable[[], None]:
    head = p2p_head(1, 0, 3, 2)

    def loop() -> None:
        for seq in range(CALLS):
            recorder.issue_p2p(head, seq, 1 << 25, NOW_NS, seq)

    return loop


def _completion(recorder: Recorder) -> Callable[[], None]:
    def loop() -> None:
        for event_id in range(CALLS):
            recorder.complete(event_id, NOW_NS, NOW_NS, NOW_NS)

    return loop


def _print_drain(recorder: Recorder) -> None:
    fill = _collective(recorder)
    costs = []
    for _ in range(ROUNDS):
        for _ in range(_FILLS):
            fill()
        begin = time.thread_time_ns()
        recorder.flush()
        costs.append((time.thread_time_ns() - begin) / CALLS / _FILLS)
    print(
        f"{'drain to disk, background':32} {min(costs):6.0f} ns best {statistics.median(costs):6.0f} ns median, per record"
    )


if __name__ == "__main__":
    raise SystemExit(main())

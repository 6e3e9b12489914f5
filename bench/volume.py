"""How many bytes a step leaves on disk, in full and as sums.

    python bench/volume.py [--steps N] [--microbatches N]

The recording is made up: an inner stage of four under 1F1B, tensor and data
parallel, every record of it with times that vary as a machine's do. The ring is a
file of fixed size and not counted; everything else in the rank's directory is.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

from meshscope.probe.recording.record_heads import carried, collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.records import (
    COLLECTIVE_CODES,
    DIRECTION_CODES,
    LEVEL_CODES,
    MEMORY_PHASE_CODES,
    SPAN_CODES,
)
from meshscope.probe.schema.ring import RING_NAME
from meshscope.probe.schema.terms import (
    CaptureLevel,
    CollectiveKind,
    Direction,
    MemoryPhase,
    SpanKind,
)

BUDGET_BYTES = 3 * 1024
LAYERS = 8
FORWARD_NS, BACKWARD_NS = 9_000_000, 18_000_000


class Rank:
    """Plays one rank of a job against a recorder."""

    def __init__(self, recorder, seed):
        self.recorder = recorder
        self.random = random.Random(seed)
        self.now_ns = 8_123_456_789_012_345
        self.seq = 0
        self.groups = [
            recorder.register_group(str(n), [0, 1, 2, 3], name)
            for n, name in enumerate(("tp", "pp", "dp"))
        ]
        self.dtype = recorder.register_dtype("bfloat16")
        recorder.step = 0

    def passes(self, length_ns):
        """Let time go by, 3 % more or less."""
        self.now_ns += int(length_ns * self.random.gauss(1, 0.03))

    def message(self, direction, peer, microbatch):
        """Send or receive the activations of a microbatch."""
        issued = self.now_ns
        head = p2p_head(self.groups[1], DIRECTION_CODES[direction], peer, self.dtype)
        event = self.recorder.issue_p2p(head, self.seq, 1 << 25, issued, carried(microbatch, 0))
        self.seq += 1
        self.passes(400_000)
        self.recorder.complete(event, self.now_ns, issued, self.now_ns)

    def collective(self, group, kind, size_bytes):
        """Run one collective and wait for it."""
        issued = self.now_ns
        head = collective_head(self.groups[group], COLLECTIVE_CODES[kind], self.dtype)
        event = self.recorder.issue_collective(head, self.seq, size_bytes, issued)
        self.seq += 1
        self.passes(150_000)
        self.recorder.complete(event, self.now_ns, issued, self.now_ns)

    def compute(self, kind, length_ns, microbatch):
        """Run one pass of the stage, with its tensor-parallel collectives."""
        start = self.now_ns
        for _ in range(2 * LAYERS):
            self.passes(length_ns / 2 / LAYERS)
            self.collective(0, CollectiveKind.ALL_REDUCE, 1 << 25)
        cpu = int((self.now_ns - start) * self.random.gauss(0.9, 0.02))
        self.recorder.record_span(
            span_head(SPAN_CODES[kind], 1, 0), start, self.now_ns - start, cpu, microbatch
        )

    def step(self, microbatches):
        """Run one optimizer step."""
        start = self.now_ns
        for microbatch in range(microbatches):
            self.message(Direction.RECV, 0, microbatch)
            self.compute(SpanKind.FORWARD, FORWARD_NS, microbatch)
            self.message(Direction.SEND, 2, microbatch)
            self.message(Direction.RECV, 2, microbatch)
            self.compute(SpanKind.BACKWARD, BACKWARD_NS, microbatch)
            self.message(Direction.SEND, 0, microbatch)
        for _ in range(12):
            self.collective(2, CollectiveKind.REDUCE_SCATTER, 1 << 27)
            self.collective(2, CollectiveKind.ALL_GATHER, 1 << 26)
        for phase in (
            MemoryPhase.AFTER_BACKWARD,
            MemoryPhase.AFTER_OPTIMIZER,
            MemoryPhase.STEP_START,
        ):
            live = 40 << 30 | self.random.randrange(1 << 28)
            self.recorder.record_memory(MEMORY_PHASE_CODES[phase], 1, rss_bytes=3 << 30, allocated_bytes=live,
                                        reserved_bytes=60 << 30, peak_bytes=55 << 30)  # fmt: skip
        recorder = self.recorder
        recorder.record_step(recorder.step, start, self.now_ns - start, 1 << 20,
                             LEVEL_CODES[CaptureLevel.COLLECTIVES])  # fmt: skip
        recorder.step += 1


def bytes_per_step(full, steps, microbatches):
    """Return the bytes on disk per step, and the records."""
    with tempfile.TemporaryDirectory() as folder:
        settings = StorageSettings(wake_s=3600.0, full_records=full, max_bytes=1 << 30)
        recorder = Recorder(Path(folder), 0, settings=settings)
        rank = Rank(recorder, seed=steps)
        for _ in range(steps):
            rank.step(microbatches)
            if recorder._writer._drain.has(recorder._writer._batch_records):
                recorder.flush()
        recorder.close()
        manifest = json.loads((Path(folder) / "rank00000" / "manifest.json").read_text())
        if manifest["counters"]:
            raise SystemExit(f"records were lost: {manifest['counters']}")
        files = [path for path in (Path(folder) / "rank00000").iterdir() if path.name != RING_NAME]
        return sum(path.stat().st_size for path in files) / steps


def main():
    """Print the bytes of each mode, and whether sums keep the budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--microbatches", type=int, default=64)
    arguments = parser.parse_args()
    modes = {
        "every record": FullRecords(),
        "sums": FullRecords(every_steps=0),
        "sums, 1 step of 100 in full": FullRecords(every_steps=100),
    }
    for name, full in modes.items():
        steps = arguments.steps if not full.are_all else max(arguments.steps // 10, 1)
        size = bytes_per_step(full, steps, arguments.microbatches)
        print(
            f"{name:32} {size / 1024:8.2f} KB per rank and step of {arguments.microbatches} microbatches"
        )
    verdict = "within" if size <= BUDGET_BYTES else "over"
    print(f"budget {BUDGET_BYTES / 1024:.0f} KB: {verdict} ({size / 1024:.2f} KB)")
    return size > BUDGET_BYTES


if __name__ == "__main__":
    raise SystemExit(main())

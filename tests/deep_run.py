"""A small run of the probe with deep traces of a device, written by hand.

Steps are 1 ms long on the monotonic clock; the time of day is ``OFFSET_NS`` ahead. Each traced
step has one operator of 100 µs that launches a compute kernel of 300 µs and then a communication
kernel of 200 µs, which begin 50 µs after their launches.
"""

import gzip
import hashlib
import json
import os
from pathlib import Path

from meshscope.probe.recording.record_heads import collective_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.deep_trace import TraceName, description_file, sealed_file
from meshscope.probe.schema.manifest import MANIFEST_NAME, rank_directory
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.terms import Axis

STEP_NS = 1_000_000
STEPS = 20
START_NS = 1_000_000_000
OFFSET_NS = 1_790_000_000_000_000_000
BASE_NS = OFFSET_NS - 7_000
"""Where the times of traces begin."""
OP_NS, COMPUTE_NS, MOVE_NS = 100_000, 300_000, 200_000
ISSUE_NS = 20_000
"""When a collective is issued, after the operator began."""
SETTINGS = StorageSettings(wake_s=3600.0, slot_count=1024, free_floor_frac=0.0)
FORWARD = 0
"""Number of that kind of span in the records."""


def step_start_ns(step: int) -> int:
    """Return when a step begins, monotonic."""
    return START_NS + step * STEP_NS


def make_run(folder: Path, *, steps: int = STEPS) -> Path:
    """Record a closed run of two ranks: a forward span over 80 % of each step, and one collective in it."""
    path = create_run(folder, "run", {"world_size": 2, "device_name": "Device"})
    record(path, steps=steps)
    return path


def record(path: Path, *, ranks: int = 2, steps: int = STEPS, part: int = 1, at: int = 0) -> None:
    """Record an attempt of a run.

    Args:
        path: The run.
        ranks: Ranks of the job.
        steps: Steps of the attempt, which its processes count from 0.
        part: Number of the attempt.
        at: How many steps after the start of the run it begins.
    """
    # All are open at the same time, as in a job.
    recorders = [Recorder(path, rank, settings=SETTINGS) for rank in range(ranks)]
    for recorder in recorders:
        group = recorder.register_group("g", list(range(ranks)), "data", Axis.DP)
        for step in range(steps):
            start_ns = step_start_ns(at + step)
            recorder.step = step
            recorder.record_span(span_head(FORWARD), start_ns, 8 * STEP_NS // 10, 0)
            recorder.issue_collective(collective_head(group, 0, -1), step, 8, start_ns + ISSUE_NS)
            recorder.record_step(step, start_ns, STEP_NS, 1)
    for rank, recorder in enumerate(recorders):
        recorder.close()
        readings = [[START_NS, START_NS + OFFSET_NS, 50]]
        change_manifest(path, rank, part=part, clock_pairs=readings)


def change_manifest(path: Path, rank: int, *, part: int = 1, **changes: object) -> None:
    """Change what the manifest of a rank says."""
    file = rank_directory(path, rank, part) / MANIFEST_NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def events_of(steps: list[int], *, device: bool = True) -> list[dict]:
    """Return what a profiler writes about some steps."""
    found = []
    for step in steps:
        at = step_start_ns(step) + 10_000
        found.append(event("cpu_op", f"aten::op{step % 2}", at, OP_NS, **{"External id": step + 1}))
        if device:
            found += _launched("compute_kernel", step, 0, at + 5_000, COMPUTE_NS)
            found += _launched("ncclDevKernel_AllReduce", step, 1, at + 15_000, MOVE_NS)
    return found


def _launched(name: str, step: int, which: int, launch_ns: int, dur_ns: int) -> list[dict]:
    place = {"correlation": 2 * step + which + 1, "External id": step + 1}
    stream = {"device": 0, "stream": 7 + which}
    # Kernels on two streams, the second after the first.
    start_ns = launch_ns + 50_000 + which * COMPUTE_NS
    return [
        event("cuda_runtime", "cudaLaunchKernel", launch_ns, 1_000, **place),
        event("kernel", name, start_ns, dur_ns, **place, **stream),
    ]


def event(category: str, name: str, at_ns: int, dur_ns: int, **args: object) -> dict:
    """Return one complete event at a monotonic time."""
    time_us = (at_ns + OFFSET_NS - BASE_NS) / 1e3
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": time_us,
        "dur": dur_ns / 1e3, "args": args,
    }  # fmt: skip


def add_trace(
    path: Path,
    rank: int,
    steps: list[int],
    *,
    named: TraceName | None = None,
    events: list[dict] | None = None,
    header: dict | None = None,
    cut: int | None = None,
    part: int = 1,
    **description: object,
) -> Path:
    """Seal a trace of some steps into a run; return its file.

    Args:
        path: The run.
        rank: Whose trace it is.
        steps: The steps that it holds.
        named: What its name says, by default the same.
        events: Its events, by default those of the steps.
        header: More keys of its header.
        cut: How many characters of the JSON there are, by default all.
        part: Number of the attempt.
        description: Other values in its description.
    """
    name = named or TraceName(min(steps), max(steps), "ticket")
    text = json.dumps({
        "baseTimeNanoseconds": BASE_NS, **(header or {}),
        "traceEvents": events_of(steps) if events is None else events,
        "traceName": "x",
    })  # fmt: skip
    sealed = sealed_file(rank_directory(path, rank, part) / "traces", name, rank)
    sealed.parent.mkdir(exist_ok=True)
    content = gzip.compress(text[:cut].encode())
    sealed.write_bytes(content)
    said = {
        "rank": rank, "pid": os.getpid(), **name._asdict(), "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(), "sealed_unix_ns": 1,
    }  # fmt: skip
    description_file(sealed).write_text(json.dumps(said | description))
    return sealed

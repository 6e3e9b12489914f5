"""What a run of many steps costs to read and to analyse; prints figures, asserts none.

    python bench/long_run.py [256 1000]

Each rank of a job of PP2 x DPn with 64 microbatches is recorded as the probe does it: passes and
messages of all steps, of most of them in sums. One replica is slower by a half in its second stage,
so what it costs is known. The run is diagnosed by another process, whose memory is given.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MICROBATCHES, MS = 64, 1_000_000
PASS_NS = {"forward": 10 * MS, "backward": 20 * MS}
SLOW_REPLICA, SLOWER = 3, 1.5
MESSAGE_BYTES = 1 << 20
FLUSH_EVERY = 4


def passes(stage, replica):
    """Return kind, microbatch, start and end of the passes of a step that begins at 0.

    All forward passes come before the first backward one. Times are what the other stage allows.
    """
    slower = SLOWER if replica == SLOW_REPLICA else 1.0
    lengths = {kind: (ns, int(ns * slower)) for kind, ns in PASS_NS.items()}
    found = ([], [])
    turn = 0
    for kind, first in (("forward", 0), ("backward", 1)):
        free, arrived = [turn, turn], [turn] * MICROBATCHES
        for at in (first, 1 - first):
            for microbatch in range(MICROBATCHES):
                start = max(free[at], arrived[microbatch])
                free[at] = arrived[microbatch] = start + lengths[kind][at]
                found[at].append((kind, microbatch, start, free[at]))
        # The last stage goes on with its backward passes at once.
        turn = free[1] if kind == "forward" else max(free)
    return found[stage], turn


def record(run, rank, replicas, steps):
    """Record one rank."""
    from meshscope.probe.recording.record_heads import carried, collective_head, p2p_head, span_head
    from meshscope.probe.recording.recorder import Recorder, StorageSettings
    from meshscope.probe.recording.step_sums import FullRecords
    from meshscope.probe.schema.records import LEVEL_CODES
    from meshscope.probe.schema.terms import CaptureLevel, CollectiveKind, Direction, SpanKind

    stage, replica = divmod(rank, replicas)
    peer = (1 - stage) * replicas + replica
    own, _ = passes(stage, replica)
    step_ns = passes(stage, SLOW_REPLICA)[1] + 5 * MS
    settings = StorageSettings(wake_s=3600.0, full_records=FullRecords(100, 100))
    recorder = Recorder(run, rank, settings=settings)
    pair = recorder.register_group(f"pp{replica}", sorted((rank, peer)), "pp")
    ring = range(stage * replicas, (stage + 1) * replicas)
    every = recorder.register_group(f"dp{stage}", list(ring), "dp")
    heads = {kind: span_head(list(SpanKind).index(SpanKind(kind)), stage, 0) for kind in PASS_NS}
    send, receive = (p2p_head(pair, at, peer, -1) for at in range(len(Direction)))
    reduce = collective_head(every, list(CollectiveKind).index(CollectiveKind.ALL_REDUCE), -1)
    level = LEVEL_CODES[CaptureLevel.COLLECTIVES]
    sent = received = 0
    for step in range(steps):
        recorder.step, begin = step, 1000 + step * step_ns
        before = begin
        for kind, microbatch, start, end in own:
            tag = carried(microbatch, 0)
            if (kind == "forward") == (stage == 1):
                event = recorder.issue_p2p(receive, received, MESSAGE_BYTES, before, tag)
                recorder.complete(event, begin + start, before, begin + start)
                received += 1
            recorder.record_span(heads[kind], begin + start, end - start, -1, microbatch)
            before = begin + end
            if (kind == "forward") == (stage == 0):
                event = recorder.issue_p2p(send, sent, MESSAGE_BYTES, before, tag)
                recorder.complete(event, before + 1000, -1, -1)
                sent += 1
        event = recorder.issue_collective(reduce, step, MESSAGE_BYTES, before)
        recorder.complete(event, begin + step_ns, before, begin + step_ns)
        recorder.record_step(step, begin, step_ns, 1, level)
        if step % FLUSH_EVERY == FLUSH_EVERY - 1:
            recorder.flush()
    recorder.close()


def generate(run, ranks, steps):
    """Record a run of so many ranks and steps."""
    from meshscope.probe.schema.rundir import create_run

    facts = {"world_size": ranks, "layout": {"tp": 1, "pp": 2, "dp": ranks // 2}}
    path = create_run(run.parent, run.name, facts)
    for rank in range(ranks):
        record(path, rank, ranks // 2, steps)


def diagnose(run):
    """Load and diagnose a run; print the figures as JSON."""
    from meshscope.analyze.findings.diagnosis import diagnose as diagnosed
    from meshscope.analyze.load.load import load_trace

    begin = time.perf_counter(), time.process_time()
    trace = load_trace(run)
    loaded = time.perf_counter(), time.process_time()
    load_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    result = diagnosed(trace)
    ended = time.perf_counter(), time.process_time()
    figures = {
        "load_wall_s": loaded[0] - begin[0],
        "load_cpu_s": loaded[1] - begin[1],
        "load_gb": load_gb,
        "diagnose_wall_s": ended[0] - loaded[0],
        "diagnose_cpu_s": ended[1] - loaded[1],
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "rows": {name: trace.row_count(name) for name in trace.tables if trace.row_count(name)},
        "step_ns": result.step_time_ns,
        "causes": [(one.kind, one.where, one.removal_gain_frac) for one in result.causes],
        "limits": result.limits,
    }
    print(json.dumps(figures, default=str))


def main():
    """Generate a run, have it diagnosed, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("ranks", type=int, nargs="?", default=64, help="an even number (64)")
    parser.add_argument("steps", type=int, nargs="?", default=500, help="(500)")
    parser.add_argument("--diagnose", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.diagnose is not None:
        diagnose(given.diagnose)
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "runs" / "long"
        generate(run, given.ranks, given.steps)
        command = [sys.executable, __file__, str(given.ranks), str(given.steps), "--diagnose"]
        out = subprocess.run(
            [*command, str(run)], check=True, capture_output=True, text=True
        ).stdout
    figures = json.loads(out)
    slow_ns, usual_ns = passes(0, SLOW_REPLICA)[1], passes(0, SLOW_REPLICA + 1)[1]
    true_frac = (slow_ns - usual_ns) / figures["step_ns"]
    print(
        f"{given.ranks} ranks x {given.steps} steps: "
        f"load {figures['load_wall_s']:.1f} s wall, {figures['load_cpu_s']:.1f} s CPU, {figures['load_gb']:.2f} GB; "
        f"diagnosis {figures['diagnose_wall_s']:.1f} s wall, {figures['diagnose_cpu_s']:.1f} s CPU, "
        f"{figures['peak_gb']:.2f} GB in all"
    )
    print("rows in memory: " + ", ".join(f"{name} {n:,}" for name, n in figures["rows"].items()))
    print(f"the slow replica costs {true_frac:.2%} of the step; reported:")
    for kind, where, gain in figures["causes"][:3]:
        print(f"  {kind} {where}: {gain:.2%}")
    for limit in figures["limits"]:
        print(f"  limit: {limit}")


if __name__ == "__main__":
    main()

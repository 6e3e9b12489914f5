"""What the analysis of one step of 1F1B costs as the job grows; prints figures, asserts none.

    python bench/scale.py 1024 4096 16384

Each size is a synthetic job of TP8 x PP16 x DPn with 64 microbatches. It is written as a
run directory by one process, and read and analysed by another, whose resident memory is
given. Stages are in wall seconds; their sum is given in CPU seconds of all threads too.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

TP, PP, MICROBATCHES = 8, 16, 64
FAULTS = ("slow_rank:rank=5,factor=1.2", "slow_link:axis=dp,rank=9,factor=3")
STAGES = ("load", "events", "ledger", "program", "attribution", "diagnose")


@contextmanager
def clocked(figures, name):
    """Put the wall and CPU seconds of the block, and the peak memory after it, into figures."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    figures[name] = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def generate(ranks, out):
    """Write the job of one size; return its figures and its path."""
    from meshscope.analyze.synthetic import (
        SyntheticJob,
        make_simulation,
        parse_fault,
        record,
        truth_of,
        write_run,
    )
    from meshscope.probe.schema.layout import ParallelLayout

    figures = {}
    job = SyntheticJob(
        layout=ParallelLayout(tp=TP, pp=PP, dp=ranks // (TP * PP)),
        microbatches=MICROBATCHES,
        steps=1,
        jitter_cv=0.02,
        faults=tuple(map(parse_fault, FAULTS)),
    )
    with clocked(figures, "generate"):
        trace = record(make_simulation(job))
    figures["rows"] = sum(table.num_rows for table in trace.tables.values())
    with clocked(figures, "truth"):
        truth = truth_of(job)
    with clocked(figures, "write"):
        figures["path"] = str(write_run(job, trace, truth, out))
    figures["truth_step_ns"] = truth.step_time_ns
    figures["truth_gains"] = [one.removal_gain_ns / truth.step_time_ns for one in truth.faults]
    return figures


def analyse(path):
    """Analyse one run, stage by stage; return the figures."""
    from meshscope.analyze.attribution import attribute
    from meshscope.analyze.communication import communication_events
    from meshscope.analyze.ledger import build_ledger
    from meshscope.analyze.load import load_trace
    from meshscope.analyze.program import build_program
    from meshscope.analyze.steps import step_windows
    from meshscope.analyze.waiting import waits_by_rank

    figures = {}
    with clocked(figures, "load"):
        trace = load_trace(path)
    with clocked(figures, "events"):
        windows = step_windows(trace)
        events = communication_events(trace, windows)
    with clocked(figures, "ledger"):
        ledger = build_ledger(trace, windows, events)
    with clocked(figures, "program"):
        program = build_program(windows, events, ledger)
    with clocked(figures, "attribution"):
        waits = waits_by_rank(events, windows.ranks.tolist())
        found = attribute(trace, program, ledger, events, waits)
    figures["nodes"], figures["edges"] = program.graph.node_count, program.edge_count
    figures["replayed_ns"] = found.replayed_ns
    figures["causes"] = [
        (cause.kind, str(cause.where)[:60], cause.removal_gain_frac) for cause in found.causes[:4]
    ]
    return figures


def diagnose_whole(path):
    """Make the whole diagnosis of one run, as the command does; return the figures."""
    from meshscope.analyze.diagnose import diagnose
    from meshscope.analyze.load import load_trace

    figures = {}
    with clocked(figures, "diagnose"):
        diagnose(load_trace(path))
    return figures


def in_a_process(part, *arguments):
    """Run one part in a process of its own; return its figures."""
    command = [sys.executable, __file__, "--part", part, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def row(ranks, figures):
    """Return the line of one size."""
    peak = max(figures[name]["peak_gb"] for name in STAGES if name in figures)
    names = ("generate", "truth", "write", *STAGES)
    seconds = [f"{figures[name]['wall_s']:9.1f}" if name in figures else " " * 9 for name in names]
    total = sum(figures[name]["wall_s"] for name in STAGES[:-1])
    cpu = sum(figures[name]["cpu_s"] for name in STAGES[:-1])
    total_cells = f"{total:8.1f} {cpu:8.1f} {peak:8.2f}"
    return f"{ranks:7,} {figures['rows']:11,} " + " ".join(seconds) + " " + total_cells


def main():
    """Measure every size and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", nargs="*", default=["1024", "4096", "16384"])
    parser.add_argument("--part", choices=("generate", "analyse", "diagnose"))
    parser.add_argument("--whole", action="store_true", help="also time the whole diagnosis")
    given = parser.parse_args()
    if given.part == "generate":
        print(json.dumps(generate(int(given.ranks[0]), Path(given.ranks[1]))))
        return
    if given.part:
        part = analyse if given.part == "analyse" else diagnose_whole
        print(json.dumps(part(given.ranks[0])))
        return
    names = ("generate", "truth", "write", *STAGES)
    titles = " ".join(f"{name:>9.9}" for name in names)
    print(f"{'ranks':>7} {'rows':>11} {titles} {'total s':>8} {'CPU s':>8} {'peak GB':>8}")
    for ranks in map(int, given.ranks):
        with tempfile.TemporaryDirectory() as out:
            figures = in_a_process("generate", ranks, out)
            figures |= in_a_process("analyse", figures["path"])
            if given.whole:
                figures |= in_a_process("diagnose", figures["path"])
        print(row(ranks, figures), flush=True)
        print(f"        {figures['nodes']:,} nodes, {figures['edges']:,} edges;", figures["causes"])
        print(
            f"        replayed {figures['replayed_ns']}, true {figures['truth_step_ns']}, "
            f"true gains {figures['truth_gains']}"
        )


if __name__ == "__main__":
    main()

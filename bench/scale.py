"""What the analysis of one step of 1F1B costs as the job grows; prints figures, asserts none.

    python bench/scale.py 1024 4096 16384

Each size is a synthetic job of TP8 x PP16 x DPn with 64 microbatches. It is written as a
run directory by one process, and read and analysed by another, whose resident memory is
given. Stages are in wall seconds; their sum is given in CPU seconds of all threads too.
``--whole`` adds the command itself, with all rules and its text. The last table shows how
time and memory grow with the rows: exponent 1 is linear, below it fixed costs still show.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

TP, PP, MICROBATCHES = 8, 16, 64
FAULTS = ("slow_rank:rank=5,factor=1.2", "slow_link:axis=dp,rank=9,factor=3")
STAGES = ("load", "events", "ledger", "program", "attribution")
WRITING = ("generate", "truth", "write")


@contextmanager
def clocked(figures, name):
    """Put the wall and CPU seconds of the block, and the peak memory after it, into figures."""
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    yield
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    figures[name] = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": user + system,
        "user_s": user,
        "peak_gb": after.ru_maxrss * 1024 / 1e9,
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
    from meshscope.analyze.account.devices.steps import device_steps
    from meshscope.analyze.account.ledger.build import build_ledger
    from meshscope.analyze.align.communication.events import communication_events
    from meshscope.analyze.align.communication.waiting import waits_by_rank
    from meshscope.analyze.align.steps.windows import step_windows
    from meshscope.analyze.explain.attribution import attribute
    from meshscope.analyze.explain.replay.program import build_program
    from meshscope.analyze.load.load import load_trace
    from meshscope.commands.starting import keep_freed_memory, take_tables_from_the_c_library

    figures = {}
    with clocked(figures, "load"):
        take_tables_from_the_c_library()
        keep_freed_memory()
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
        devices = device_steps(trace, windows, None)
        found = attribute(trace, program, ledger, events, waits, devices)
    figures["nodes"], figures["edges"] = program.graph.node_count, program.edge_count
    figures["replayed_ns"] = found.replayed_ns
    figures["causes"] = [
        (cause.kind, str(cause.where)[:60], cause.removal_gain_frac) for cause in found.causes[:4]
    ]
    return figures


def diagnose_whole(path):
    """Make the whole diagnosis of one run and its text, as the command does; return the figures."""
    from meshscope.analyze import diagnose, load_trace
    from meshscope.analyze.output.text import to_text
    from meshscope.commands.starting import keep_freed_memory, take_tables_from_the_c_library

    figures = {}
    with clocked(figures, "diagnose"):
        take_tables_from_the_c_library()
        keep_freed_memory()
        text = to_text(diagnose(load_trace(path)))
    figures["lines"] = len(text.splitlines())
    return figures


def in_a_process(part, *arguments):
    """Run one part in a process of its own; return its figures."""
    command = [sys.executable, __file__, "--part", part, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def total(figures, name):
    """Return the seconds of all stages of the analysis, or the highest peak of their memory."""
    values = [figures[stage][name] for stage in STAGES]
    return max(values) if name == "peak_gb" else sum(values)


def row(ranks, figures):
    """Return the line of one size."""
    seconds = [f"{figures[name]['wall_s']:11.1f}" for name in (*WRITING, *STAGES)]
    sums = [f"{total(figures, name):8.2f}" for name in ("wall_s", "cpu_s", "peak_gb")]
    return f"{ranks:7,} {figures['rows']:11,} " + " ".join([*seconds, *sums])


def details(figures):
    """Return what was found, against the truth."""
    lines = [
        f"{figures['nodes']:,} nodes, {figures['edges']:,} edges; {figures['causes']}",
        f"replayed {figures['replayed_ns']}, true {figures['truth_step_ns']}, "
        f"true gains {figures['truth_gains']}",
    ]
    if "diagnose" in figures:
        whole = figures["diagnose"]
        lines.append(
            f"the command: {whole['wall_s']:.1f} s, {whole['cpu_s']:.1f} CPU s, "
            f"{whole['peak_gb']:.2f} GB; {figures['lines']} lines of text"
        )
    return [" " * 8 + line for line in lines]


def growth(sizes):
    """Return how time and memory grow from one size to the next, with the exponents in the rows.

    CPU time is given without the part of the system, too: that hands out pages of memory, and
    hands them out anew for arrays that are too large to be kept for reuse.
    """
    titles = ("rows", "CPU s", "user s", "peak GB")
    lines = [f"{'ranks':>17} " + " ".join(f"{title:>14}" for title in titles)]
    for (small, before), (large, after) in pairwise(sizes.items()):
        rows = after["rows"] / before["rows"]
        cells = [f"{rows:13.2f}x"]
        for name in ("cpu_s", "user_s", "peak_gb"):
            factor = total(after, name) / total(before, name)
            cells.append(f"{factor:6.2f}x ^{math.log(factor) / math.log(rows):4.2f}")
        lines.append(f"{small:7,} -> {large:6,} " + " ".join(f"{cell:>14}" for cell in cells))
    return lines


def measured(ranks, *, whole):
    """Return the figures of one size."""
    with tempfile.TemporaryDirectory() as out:
        figures = in_a_process("generate", ranks, out)
        figures |= in_a_process("analyse", figures["path"])
        if whole:
            figures |= in_a_process("diagnose", figures["path"])
    return figures


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
    titles = " ".join(f"{name:>11}" for name in (*WRITING, *STAGES))
    print(f"{'ranks':>7} {'rows':>11} {titles} {'total s':>8} {'CPU s':>8} {'peak GB':>8}")
    sizes = {}
    for ranks in map(int, given.ranks):
        sizes[ranks] = measured(ranks, whole=given.whole)
        print(row(ranks, sizes[ranks]), *details(sizes[ranks]), sep="\n", flush=True)
    print(*growth(sizes), sep="\n")


if __name__ == "__main__":
    main()

"""What summaries of runs of many ranks cost, and whether the slow rank is found; prints figures, asserts none.

    python bench/summaries.py                         64 and 256 ranks of 20 steps, 256 and 1,024 of 1,000, 4,096 of 100
    python bench/summaries.py 256 1024 4096 --steps 50
    make bench-large                                  the large ones of these
    make bench-large SIZES="64x100 256x100"           other sizes
    python bench/summaries.py 96x1000 --one --limit 400    workers that keep to 400 MB

Each size is a synthetic job of TP4 x PP4 x DPn with 8 microbatches, written as a run directory by a process
of its own, in bounded memory. One worker summarizes it, then two (not with ``--one``). CPU seconds and the largest memory are those that
workers tell of themselves, so a busy machine hardly changes them; it does change wall seconds. So the efficiency of two
workers stands beside that of two processes that share nothing, measured just before and after: what the machine gives. The
last lines compare what the answer says of the slow rank with the truth, and extrapolate.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

TP, PP, MICROBATCHES = 4, 4, 8
SLOW, FACTOR = 21, 1.2
ROUNDS = 15_000_000
"""Of a loop that needs nothing but a CPU: about a second."""
LARGE = ("256x1000", "1024x1000", "4096x100")
TARGET_RANKS, TARGET_STEPS, TARGET_CORES = 16_384, 1_000, 16


def generate(ranks, steps, out, seed=0):
    """Write the job of one size; return its path and what repairing the slow rank returns."""
    from meshscope.analyze.load.ingested import rows_by_rank
    from meshscope.analyze.scale.executors import InThisProcess
    from meshscope.analyze.synthetic import (
        SyntheticJob,
        parse_fault,
        truth_of,
    )
    from meshscope.analyze.synthetic.sharded import write_sharded_run
    from meshscope.probe.schema.layout import ParallelLayout

    first = steps // 4
    job = SyntheticJob(
        layout=ParallelLayout(tp=TP, pp=PP, dp=ranks // (TP * PP)),
        microbatches=MICROBATCHES,
        steps=steps,
        jitter_cv=0.01,
        seed=seed,
        faults=(parse_fault(f"slow_rank:rank={SLOW},factor={FACTOR},first_step={first}"),),
    )
    truth = truth_of(job)
    path = write_sharded_run(job, truth, Path(out), InThisProcess())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    gain = truth.faults[0].removal_gain_ns
    rows = sum(rows_by_rank(path).values()) + ranks * steps
    made = {"write_cpu_s": time.process_time(), "write_peak_bytes": peak}
    return {"path": str(path), "rows": rows, "gain_ns": gain, "first_step": first, **made}


def watched(segment):
    """Summarize some ranks in a worker; return its CPU seconds for them and its largest memory."""
    from meshscope.analyze.scale.segments import write_segment

    begin = time.process_time()
    write_segment(segment)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return time.process_time() - begin, peak


def summarize(path, workers, out, limit_mb=None):
    """Summarize a run with some workers, within a memory if one is given; return wall and CPU seconds and the memory of the largest worker."""
    from meshscope.analyze.scale.executors import LocalProcesses
    from meshscope.analyze.scale.segments import segments_of

    tasks = segments_of(Path(path), Path(out), limit_mb and limit_mb * 1e6)
    begin = time.perf_counter()
    done = list(LocalProcesses(workers).map(watched, tasks, lambda _: None))
    wall_s = time.perf_counter() - begin
    cpu_s = sum(cpu for cpu, _ in done)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": max(peak for _, peak in done)}


def _rounds(count):
    for _ in range(count):
        pass


def efficiency_of_two(context):
    """Return the wall time of one process over that of two at once, each with the same to do: 1 on two free CPUs."""
    walls = []
    for count in (1, 2):
        processes = [context.Process(target=_rounds, args=(ROUNDS,)) for _ in range(count)]
        begin = time.perf_counter()
        for one in processes:
            one.start()
        for one in processes:
            one.join()
        walls.append(time.perf_counter() - begin)
    return walls[0] / walls[1]


def answer(path, out):
    """Return what summaries that are there already say of the slow rank, and what that costs."""
    from meshscope.analyze.scale.executors import InThisProcess
    from meshscope.analyze.scale.slow_ranks import first_answer
    from meshscope.analyze.scale.store import read_summaries, write_summaries

    write_summaries(Path(path), InThisProcess(), lambda _: None, Path(out))
    begin = time.process_time()
    found = first_answer(read_summaries(Path(path), Path(out)))
    cpu_s = time.process_time() - begin
    slow = [
        {"rank": one.verdict.rank, "since": one.verdict.first_bad_step, "ns": one.price.return_ns}
        for one in found.slow
    ]
    return {"cpu_s": cpu_s, "step_ns": found.step_ns, "slow": slow}


def in_a_process(part, *arguments):
    """Run one part in a process of its own; return its figures."""
    command = [sys.executable, __file__, "--part", part, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(ranks, steps, workers, seed, limit_mb):
    """Return the figures of one size, with each number of workers."""
    with tempfile.TemporaryDirectory() as folder:
        figures = in_a_process("generate", ranks, steps, folder, seed)
        figures["cells"] = ranks * steps
        context, machine = multiprocessing.get_context("fork"), []
        for count in workers:
            out = Path(folder, f"summaries-{count}")
            out.mkdir()
            machine.append(efficiency_of_two(context))
            figures[count] = in_a_process("summarize", figures["path"], count, out, *limit_mb)
        figures["machine"] = statistics.mean((*machine, efficiency_of_two(context)))
        figures["answer"] = in_a_process("answer", figures["path"], out)
    return figures


def row(ranks, steps, figures):
    """Return the line of one size."""
    one, two = figures[1], figures.get(2)
    peak = max(figures[count]["peak_bytes"] for count in (1, 2) if count in figures)
    pair = f"{'':8} {'':11} {'':8} {'':8}"
    if two:
        pair = (
            f"{two['wall_s']:8.1f} {one['wall_s'] / two['wall_s'] / 2:11.0%} {figures['machine']:8.0%} "
            f"{one['cpu_s'] / two['cpu_s']:8.0%}"
        )
    return (
        f"{ranks:6,} {steps:6,} {figures['rows']:11,} {figures['write_cpu_s']:8.1f} "
        f"{figures['write_peak_bytes'] / 1e6:8.0f} {one['cpu_s']:8.2f} "
        f"{one['cpu_s'] / figures['cells'] * 1e3:17.3f} {one['wall_s']:8.1f} {pair} "
        f"{peak / 1e6:9.0f} {figures['answer']['cpu_s']:9.2f}"
    )


def growth(sizes):
    """Return how CPU time grows with the records from one size to the next; exponent 1 is linear."""
    for (small, before), (large, after) in pairwise(sizes.items()):
        rows = after["rows"] / before["rows"]
        cpu = after[1]["cpu_s"] / before[1]["cpu_s"]
        # Sizes of about as many records say nothing of how it grows.
        if abs(math.log(rows)) > 0.1:
            yield (
                f"{small[0]:,} x {small[1]:,} -> {large[0]:,} x {large[1]:,}: {rows:.2f} x the records, {cpu:.2f} x the CPU time: "
                f"exponent {math.log(cpu) / math.log(rows):.2f}"
            )


def verdict(ranks, figures):
    """Return what was reported of the slow rank beside the truth."""
    answered = figures["answer"]
    true_frac = figures["gain_ns"] / answered["step_ns"]
    lines = [
        f"{ranks:,} ranks, true: rank {SLOW} since step {figures['first_step']}, repairing it returns "
        f"{figures['gain_ns'] / 1e6:.3f} ms a step ({true_frac:.2%})"
    ]
    for one in answered["slow"]:
        price, share = "an unknown time", ""
        if one["ns"] is not None:
            price = f"{one['ns'] / 1e6:.3f} ms a step"
            error = one["ns"] / figures["gain_ns"] - 1
            share = f" ({one['ns'] / answered['step_ns']:.2%}); error {error:+.2%}"
        lines.append(f"reported: rank {one['rank']} since step {one['since']}, {price}{share}")
    return lines if answered["slow"] else [*lines, "reported: no rank is slow"]


def extrapolated(figures):
    """Return what the target would take at the cost of the largest size; nobody measured it."""
    cells = TARGET_RANKS * TARGET_STEPS
    cpu_s = figures[1]["cpu_s"] / figures["cells"] * cells
    return (
        f"extrapolated, not measured: {TARGET_RANKS:,} ranks of {TARGET_STEPS:,} steps at the cost of the largest "
        f"size: {cpu_s:,.0f} CPU s, {cpu_s / TARGET_CORES / 60:.1f} minutes on {TARGET_CORES} cores, "
        "if these stay as busy and disks keep up"
    )


def main():
    """Measure every size and print the table and what follows from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("given", nargs="*", default=["64", "256", *LARGE])
    parser.add_argument("--steps", type=int, default=20, help="of sizes that name none")
    parser.add_argument("--one", action="store_true", help="one worker only")
    parser.add_argument("--limit", type=float, nargs=1, default=[], help="memory of a worker, MB")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the jitter")
    parser.add_argument("--part", choices=("generate", "summarize", "answer"))
    given = parser.parse_args()
    if given.part == "generate":
        ranks, steps, out, seed = given.given
        print(json.dumps(generate(int(ranks), int(steps), out, int(seed))))
        return
    if given.part == "summarize":
        path, workers, out, *limit_mb = given.given
        print(json.dumps(summarize(path, int(workers), out, *map(float, limit_mb))))
        return
    if given.part == "answer":
        print(json.dumps(answer(*given.given)))
        return
    print(f"{os.cpu_count()} CPU cores, load {os.getloadavg()[0]:.1f}; efficiency of 2 workers")
    print(
        f"{'ranks':>6} {'steps':>6} {'records':>11} {'write s':>8} {'MB':>8} {'CPU s':>8} {'ms a rank-step':>17} {'wall 1':>8} "
        f"{'wall 2':>8} {'eff. (wall)':>11} {'machine':>8} {'(CPU)':>8} {'worker MB':>9} {'answer s':>9}"
    )
    sizes = {}
    for size in given.given:
        ranks, _, steps = size.partition("x")
        key = int(ranks), int(steps or given.steps)
        for seed in given.seeds:
            sizes[key] = measured(*key, (1,) if given.one else (1, 2), seed, given.limit)
            print(row(*key, sizes[key]), flush=True)
            print(*verdict(key[0], sizes[key]), sep="\n", flush=True)
    largest = max(sizes.values(), key=lambda figures: figures["rows"])
    print(*growth(sizes), extrapolated(largest), sep="\n")


if __name__ == "__main__":
    main()

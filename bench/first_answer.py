"""What the first answer costs at many ranks, from summaries that are made up; prints figures, asserts none.

    python bench/first_answer.py                    16,384 ranks of 1,000 steps
    python bench/first_answer.py 4096x100 --limit 500
    python bench/first_answer.py 16384x1000 --all   follows all ranks, too (minutes, 7 GB)

The mesh is TP4 x PP4 x DPn. Rank 21 is 20 % slower from a quarter of the steps on, in noise of 1 %. CPU seconds and the largest
memory are those of a process that does nothing else. The answer is made with both small tables, as a command makes it.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from tests.unit.analyze.scale.many_ranks import own_work, summaries_of  # noqa: E402

from meshscope.analyze.scale import ranks_to_follow as module  # noqa: E402
from meshscope.analyze.scale.first_answer import outlook_of  # noqa: E402
from meshscope.analyze.scale.store import Summaries  # noqa: E402
from meshscope.probe.schema.layout import ParallelLayout  # noqa: E402

TP, PP, SLOW, FACTOR = 4, 4, 21, 1.2
TOGETHER = 128
"""Ranks that are made at a time."""


def made(ranks, steps, folder):
    """Write the summaries of a job; some replicas at a time, each with noise of its own."""
    whole = ParallelLayout(tp=TP, pp=PP, dp=ranks // (TP * PP), order="dp-pp-cp-tp")
    part = ParallelLayout(tp=TP, pp=PP, dp=TOGETHER // (TP * PP), order="dp-pp-cp-tp")
    parts = []
    for at in range(ranks // TOGETHER):
        own = own_work(part, steps, seed=at)
        if at == SLOW // TOGETHER:
            own[SLOW % TOGETHER, steps // 4 :] *= FACTOR
        parts.append(summaries_of(own, part, folder, first_rank=at * TOGETHER))
    segments = tuple(one for part in parts for one in part.segments)
    outline = parts[0].outline._replace(layout=whole)
    return Summaries(run=folder, folder=folder, outline=outline, segments=segments)


def answer(ranks, steps, limit, *, whole):
    """Make the answer once; return what it costs and what it says."""
    with tempfile.TemporaryDirectory() as folder:
        summaries = made(ranks, steps, Path(folder))
        if whole:
            module.MOST_FOLLOWED = 0.0
        before = _peak()
        begin = time.process_time()
        found = outlook_of(summaries, limit).answer
        cpu_s = time.process_time() - begin
    slow = [(one.verdict.rank, one.verdict.first_bad_step) for one in found.slow]
    return {"cpu_s": cpu_s, "made": before, "peak": _peak(), "slow": slow, "every": found.every}


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main():
    """Measure every size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=["16384x1000"])
    parser.add_argument("--limit", type=float, help="memory there is, MB")
    parser.add_argument("--all", action="store_true", help="follow all ranks, too")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    limit = given.limit and given.limit * 1e6
    if given.part:
        ranks, steps = map(int, given.sizes[0].split("x"))
        print(json.dumps(answer(ranks, steps, limit, whole=given.all)))
        return
    for size, whole in [(size, whole) for size in given.sizes for whole in {False, given.all}]:
        command = [sys.executable, __file__, "--part", size, *(["--all"] if whole else [])]
        command += ["--limit", str(given.limit)] if given.limit else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        one = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{size:>12} {'all' if whole else 'some':5} {one['cpu_s']:7.1f} CPU s, {one['peak']:6.0f} MB at most "
            f"({one['made']:.0f} before), one in {one['every']} steps; slow rank and first step: {one['slow']}",
            flush=True,
        )


if __name__ == "__main__":
    main()

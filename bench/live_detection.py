"""How often the detection finds a slow rank in jobs of the reference trainer, on this machine.

    python -m bench.live_detection [--jobs 32] [--out FOLDER]

Each job is healthy for 26 steps, one of them to warm up; then one rank takes 5 % longer for its own work in 5 steps, or 2 % in
20. Layouts, even and packed sequences (described to the probe), amounts and ranks take turns; seeds are ``SEED + n``. Prints a row a
job and the rate of each kind with its Wilson interval. Ranks share cores here: leave the machine alone meanwhile.
"""

import argparse
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.detection_cases import wilson  # noqa: E402
from tests.truth.live.cases import SEED, LiveCase, Way  # noqa: E402
from tests.truth.live.job import run_job  # noqa: E402
from tests.truth.live.suite import PACKED, PIPELINE, REPLICAS  # noqa: E402

from meshscope.analyze import load_trace  # noqa: E402
from meshscope.analyze.explain.slow_ranks import detect  # noqa: E402

PACE_MS = 20.0
"""Of a block's forward; its backward takes twice that, so a microbatch takes three times."""
PAST = 26
KINDS = tuple(product(((5, 5), (2, 20)), (False, True), (PIPELINE, REPLICAS)))
"""Percent and steps of the slow-down, whether sequences differ, layout."""


def job(number):
    """Return a job, its slow rank and what it counts as."""
    (percent, steps), uneven, layout = KINDS[number % len(KINDS)]
    rank = number // len(KINDS) % layout.world_size
    delay_ms = 3 * PACE_MS * percent / 100
    faults = (f"slow_rank:rank={rank},delay_ms={delay_ms},start={PAST}",)
    work = "uneven work, described" if uneven else "even work"
    case = LiveCase(
        row=f"{percent} percent {work} {number}",
        layout=layout,
        faults=(*faults, "sequence_imbalance:") if uneven else faults,
        way=Way.ALWAYS,
        blocks=layout.pp,
        pace_ms=PACE_MS,
        steps=PAST + steps,
        settings=(*(PACKED if uneven else ()), f"train.seed={SEED + number}"),
    )
    return case, rank, f"{percent} % in {steps} steps, {work}"


def main():
    """Run the jobs and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=32)
    parser.add_argument("--out", type=Path, help="keep the runs here")
    options = parser.parse_args()
    hits, wrong, total = defaultdict(int), 0, defaultdict(int)
    with TemporaryDirectory(prefix="meshscope-live-") as folder:
        out = options.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        for number in range(options.jobs):
            case, rank, kind = job(number)
            run, _ = run_job(case, out)
            suspects = detect(load_trace(run)).suspects
            found = [
                f"rank {one.rank} by {one.slowdown:.1%} from step {one.first_bad_step}"
                for one in suspects
            ]
            total[kind] += 1
            hits[kind] += rank in [one.rank for one in suspects]
            wrong += any(one.rank != rank for one in suspects)
            print(f"{case.name}: rank {rank}; found {', '.join(found) or 'none'}", flush=True)
    for kind, count in total.items():
        low, high = wilson(hits[kind], count)
        print(f"{kind}: {hits[kind]} of {count} (95 % {low:.0%} .. {high:.0%})")
    print(f"jobs in which another rank was blamed: {wrong} of {options.jobs}")


if __name__ == "__main__":
    main()

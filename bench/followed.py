"""Does a close look at some of thousands of ranks blame those that a close look at all does? Prints figures, asserts none.

    python bench/followed.py            50 jobs of 2,048 ranks, 100 faint stretches among 720 ranks
    python bench/followed.py --jobs 10 --faint 20

Own work is made up, without a job of as many records: TP2 x PP4 x DP256 and 120 steps. Each job has other slow ranks and
other noise, in turn. Faint stretches are 16 to 48 steps of one rank, in noise of 5 %, at 5 to 8.5 standard errors: the
tests on slow ranks blame about half of them. The price is compared where both answers blame the same rank.
"""

import argparse
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from tests.unit.analyze.scale.many_ranks import own_work, summaries_of  # noqa: E402

from meshscope.analyze.explain.slow_ranks.cube import cube_of  # noqa: E402
from meshscope.analyze.scale import ranks_to_follow as module  # noqa: E402
from meshscope.analyze.scale.slow_ranks import first_answer  # noqa: E402
from meshscope.probe.schema.layout import ParallelLayout  # noqa: E402

WIDE, FLAT, STEPS = ParallelLayout(tp=2, pp=4, dp=256), ParallelLayout(tp=1, pp=1, dp=720), 120
NOISE = {
    "noise 1 %": {},
    "noise 5 %": {"cv": 0.05},
    "heavy tails": {"tails": True},
    "unequal work": {"unequal": 0.2},
}
FAULTS = {
    "one rank, all steps": (1, slice(None), 1.06),
    "one rank, from step 70": (1, slice(70, None), 1.06),
    "one rank, 20 steps": (1, slice(40, 60), 1.08),
    "one rank, every sixth step": (1, slice(None, None, 6), 1.2),
    "12 ranks": (12, slice(None), 1.08),
    "20 ranks": (20, slice(30, None), 1.15),
    "a tenth of all": (205, slice(None), 1.3),
    "a host of 8": ("host", slice(50, None), 1.1),
    "a replica": ("replica", slice(60, None), 1.1),
    "nobody": (0, slice(None), 1.0),
}
FAINT = (16, 32, 20, 48)
"""Steps of a stretch."""


def job(fault, noise, seed):
    """Return own work [rank, step] of a job, and which ranks are slow."""
    own = own_work(WIDE, STEPS, seed=seed, **NOISE[noise])
    who, steps, factor = FAULTS[fault]
    chosen = np.random.default_rng(seed).permutation(WIDE.world_size)
    if who == "host":
        slow = chosen[0] // 8 * 8 + np.arange(8)
    elif who == "replica":
        slow = np.flatnonzero(cube_of(tuple(range(WIDE.world_size)), WIDE).replica == seed + 99)
    else:
        slow = chosen[:who]
    work = own[slow]
    work[:, steps] *= factor
    own[slow] = work
    return own, set(slow.tolist())


def both_ways(own, layout):
    """Return the ranks that each answer blames, with their prices: of some ranks, and of all."""
    with tempfile.TemporaryDirectory() as folder:
        made = summaries_of(own, layout, Path(folder), "none")
        answers = [first_answer(made)]
        module.MOST_FOLLOWED, usual = 0.0, module.MOST_FOLLOWED
        answers.append(first_answer(made))
        module.MOST_FOLLOWED = usual
    return [{one.verdict.rank: one.price.most_ns for one in found.slow} for found in answers]


def compare(jobs):
    """Print what both answers say of some jobs."""
    cases, same, prices = list(product(FAULTS, NOISE)), 0, []
    for seed in range(jobs):
        # Neighbours differ in both.
        fault, noise = cases[seed * 11 % len(cases)]
        own, slow = job(fault, noise, seed)
        some, whole = both_ways(own, WIDE)
        same += some.keys() == whole.keys()
        prices += [abs(some[rank] / whole[rank] - 1) for rank in some.keys() & whole.keys()]
        healthy = [len(found.keys() - slow) for found in (some, whole)]
        print(
            f"{fault:28} {noise:13} slow {len(slow):3}  some {len(some):2}  all {len(whole):2}  "
            f"only some {len(some.keys() - whole.keys())}  only all {len(whole.keys() - some.keys())}  "
            f"healthy {healthy[0]}, {healthy[1]}",
            flush=True,
        )
    print(f"{jobs} jobs: the same ranks in {same}; prices differ by up to {max(prices):.1%}")


def faint(jobs):
    """Print how many faint stretches that the tests blame are followed."""
    blamed = kept = found = 0
    for seed in range(jobs):
        length, errors = FAINT[seed % len(FAINT)], 5 + seed % 8 / 2
        own = own_work(FLAT, STEPS, seed=seed, cv=0.05)
        own[333, 50 : 50 + length] *= 1 + errors * 0.05 / np.sqrt(length)
        some, whole = both_ways(own, FLAT)
        if 333 in whole:
            kept += 333 in module.standing_out(own, cube_of(tuple(range(FLAT.world_size)), FLAT))
            blamed, found = blamed + 1, found + (333 in some)
    print(
        f"{jobs} faint stretches: all blames {blamed}; {kept} of them stand out, some blames {found}"
    )


def main():
    """Compare both answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--faint", type=int, default=100)
    given = parser.parse_args()
    if given.jobs:
        compare(given.jobs)
    if given.faint:
        faint(given.faint)


if __name__ == "__main__":
    main()

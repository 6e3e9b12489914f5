"""How often the detection of slow ranks is right, on seeded synthetic jobs.

    python -m bench.detection [cases per fault family] [healthy jobs per layout] [layout …]

Prints one row a family with Wilson 95 % intervals, offline and online, and lists the
seeds that were missed or in which a healthy rank was blamed.
"""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.detection_cases import (  # noqa: E402
    LAYOUTS,
    Family,
    Tally,
    families,
    judge,
    measured_cv,
    offline,
    online,
    wilson,
)

CASES, HEALTHY = 4, 6
"""Enough to see that it runs; the figures of the docs are from 200 and 1,000."""


def rate(successes: int, cases: int) -> str:
    """Return a rate with its interval, in percent."""
    low, high = wilson(successes, cases)
    return f"{100 * successes / max(cases, 1):5.1f} [{100 * low:5.1f}, {100 * high:5.1f}]"


def row(family: Family, mode: str, tally: Tally) -> str:
    """Return one line of the table."""
    place = f"{family.layout}{', uneven work' if family.work_cv else ''}"
    hits = tops = " " * 20
    if family.factors:
        hits, tops = rate(tally.hits, tally.cases), rate(tally.tops, tally.cases)
    return (
        f"{place:24} {family.name:26} {mode:8} {tally.cases:5} {hits} {tops} "
        f"{rate(tally.wrong, tally.cases)} {tally.ambiguous:4}"
    )


def main(arguments: list[str]) -> int:
    """Print the table and the seeds of what went wrong."""
    sizes = [int(word) for word in arguments if word.isdecimal()]
    cases, healthy = [*sizes, *(CASES, HEALTHY)[len(sizes) :]][:2]
    layouts = [word for word in arguments if not word.isdecimal()] or list(LAYOUTS)
    some = next(families()).job(0)[0]
    print(f"within a worker, even work: CV {measured_cv(some):.1%}; {len(LAYOUTS)} layouts")
    print(
        f"{'layout':24} {'family':26} {'mode':8} {'cases':>5} {'hits, %':20} {'top-1, %':20} "
        f"{'blamed, %':20} open"
    )
    wrong = []
    for family in (family for family in families() if family.layout in layouts):
        for mode, look in (("offline", offline), ("online", online)):
            tally = judge(family, cases if family.factors else healthy, look)
            print(row(family, mode, tally), flush=True)
            if tally.misses or tally.blames:
                what = f"{family.layout}, {family.work_cv}, {family.name}, {mode}"
                wrong.append(f"{what}: missed {tally.misses}, blamed {tally.blames}")
    print("\nwhat went wrong, by seed:", *(wrong or ["nothing"]), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

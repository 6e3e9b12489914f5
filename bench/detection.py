"""How often the detection of slow ranks is right, on seeded synthetic jobs.

    python -m bench.detection [--cases N] [--windows N] [--layout NAME ...] [--held-out]

Prints one row a family with Wilson 95 % intervals, offline and online, beside what a test that
knows everything but the answer would find, and one that must look for rank and step; then how often a rank of a healthy job is blamed: in
recorded windows of 25 to 60 steps, and in 20 steps of a running job. What was missed is
listed by seed.
"""

import argparse
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.detection_cases import (  # noqa: E402
    DEVELOPMENT,
    HELD_OUT,
    LAYOUTS,
    Family,
    Tally,
    clean_job,
    families,
    judge,
    offline,
    online,
    wilson,
)
from tests.detection_limit import best_rate, searching_rate  # noqa: E402

RUNNING_STEPS, WINDOW_STEPS = 400, 20
"""Steps of a healthy running job, and of a window of it."""
MODES = {"offline": offline, "online": online}


def rate(successes: int, cases: int, scale: float = 100.0) -> str:
    """Return a rate with its interval, in percent unless scaled otherwise."""
    low, high = wilson(successes, cases)
    share = scale * successes / max(cases, 1)
    return f"{share:5.1f} [{scale * low:5.1f}, {scale * high:5.1f}]"


def row(family: Family, mode: str, tally: Tally) -> str:
    """Return one line of the table."""
    work = ", tokens known" if family.tokens else ", uneven work" if family.work_cv else ""
    best = "    -     -"
    if family.start and not family.bigger:
        searching = searching_rate(family, running=mode == "online")
        best = f"{100 * best_rate(family):5.1f} {100 * searching:5.1f}"
    return (
        f"{family.layout + work:26} {family.name:26} {mode:8} {tally.cases:5} "
        f"{rate(tally.hits, tally.cases)} {best} {rate(tally.tops, tally.cases)} "
        f"{tally.wrong:4} {tally.ambiguous:4}"
    )


def faults(cases: int, layouts: list[str], first_seed: int) -> list[str]:
    """Print the table of faults and return what went wrong."""
    print(
        f"{'layout':26} {'family':26} {'mode':8} {'cases':>5} {'hits, %':20} {'best':>5} {'looks':>5} "
        f"{'top-1, %':20} blamed open"
    )
    wrong = []
    for family in (family for family in families(first_seed) if family.layout in layouts):
        for mode, look in MODES.items():
            tally = judge(family, cases, look)
            print(row(family, mode, tally), flush=True)
            if tally.misses or tally.blames:
                what = f"{family.layout}, {family.work_cv}, {family.tokens}, {family.name}, {mode}"
                wrong.append(f"{what}: missed {tally.misses}, blamed {tally.blames}")
    return wrong


def healthy(windows: int, mode: str, first_seed: int, skip: int = 0) -> list[str]:
    """Print how often healthy ranks are blamed and return by which seeds."""
    steps = 0 if mode == "offline" else RUNNING_STEPS
    jobs = windows if mode == "offline" else windows // (RUNNING_STEPS // WINDOW_STEPS)
    blamed = [0, 0]
    counts, wrong = [0, 0], []
    for number in range(skip, skip + jobs):
        job = clean_job(number, first_seed, steps)
        found = len(MODES[mode](job))
        uneven = int(job.nuisance.work_cv > 0)
        counts[uneven] += 1 if mode == "offline" else RUNNING_STEPS // WINDOW_STEPS
        blamed[uneven] += found if mode == "online" else bool(found)
        if found:
            wrong.append(f"healthy, {mode}: seed {job.seed}, {job.layout}, {found} suspects")
    for name, number, count in zip(("even", "uneven"), blamed, counts, strict=True):
        print(f"healthy, {name:6} {mode:8} {number} of {count} windows", flush=True)
    print(
        f"healthy, all    {mode:8} {sum(blamed)} of {sum(counts)} windows: "
        f"{rate(sum(blamed), sum(counts), 1000.0)} in 1,000",
        flush=True,
    )
    return wrong


def main(arguments: list[str]) -> int:
    """Print the tables and the seeds of what went wrong."""
    parser = argparse.ArgumentParser(description="How often the detection of slow ranks is right.")
    parser.add_argument("--cases", type=int, default=4, help="jobs of each family of faults")
    parser.add_argument("--windows", type=int, default=200, help="healthy windows")
    parser.add_argument("--skip", type=int, default=0, help="healthy jobs to leave out")
    parser.add_argument("--layout", nargs="*", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--mode", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--held-out", action="store_true", help="seeds kept for the last look")
    options = parser.parse_args(arguments)
    first_seed = HELD_OUT if options.held_out else DEVELOPMENT
    wrong = faults(options.cases, options.layout, first_seed) if options.cases else []
    for mode in options.mode if options.windows else []:
        wrong += healthy(options.windows, mode, first_seed, options.skip)
    print("\nwhat went wrong, by seed:", *(wrong or ["nothing"]), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

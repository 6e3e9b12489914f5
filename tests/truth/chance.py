"""How often chance delays make a suspect, and how often a slow rank among them is found.

``python -m tests.truth.chance`` prints the table; ``--windows`` says how many of each kind.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import pandas as pd
from tests.chance_noise import KINDS, Noise
from tests.unit.analyze.explain.causes.test_repair import work_of

from meshscope.analyze.explain.causes.effects import Expected, peer_centre
from meshscope.analyze.explain.suspects import beyond_chance, compared_ranks, is_suspect
from meshscope.analyze.tables.arrays import FloatArray

STEP_NS = 1e7
SIZES = ((2, 40), (4, 60), (8, 100), (8, 20), (16, 50), (4, 10))
"""Ranks and steps of the windows."""
PASSES = pd.DataFrame(columns=["rank", "step", "kind", "chunk", "microbatch", "dur_ns"])
FACTOR = 1.3
"""Of the slow rank."""


def suspected(steps: FloatArray) -> dict[int, float]:
    """Return the suspects with what they work longer per step, ns, of steps ``(ranks, steps)``."""
    work = work_of(STEP_NS * steps[:, :, None])
    centre = peer_centre(work)
    ranks = compared_ranks(work, centre).assign(late=False)
    ranks["suspect"] = is_suspect(ranks, STEP_NS * float(steps.max(axis=0).mean()), None)
    ranks, _ = beyond_chance(work, Expected(centre, None), PASSES, ranks, None)
    slow = ranks[ranks["suspect"]]
    return dict(zip(slow["rank"].tolist(), slow["excess_ns"].tolist(), strict=True))


def windows(noise: Noise, count: int) -> Iterator[FloatArray]:
    """Yield as many windows of every size."""
    for ranks, steps in SIZES:
        for number in range(count):
            yield noise.steps(1000 * number + 7 * ranks + steps, ranks, steps)


def false_suspects(noise: Noise, count: int) -> tuple[int, int]:
    """Return in how many windows without a slow rank there is a suspect, and how many there are."""
    blamed = [bool(suspected(steps)) for steps in windows(noise, count)]
    return sum(blamed), len(blamed)


def found_slow(noise: Noise, count: int) -> tuple[int, int, int]:
    """Return in how many windows the slow rank is found, others are blamed, and how many there are."""
    found = others = total = 0
    for steps in windows(noise, count):
        rank, slowed = total % len(steps), steps.copy()
        slowed[rank] *= FACTOR
        blamed = set(suspected(slowed))
        found, others, total = found + (rank in blamed), others + bool(blamed - {rank}), total + 1
    return found, others, total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10, help="of each kind and size")
    count = parser.parse_args().windows
    blamed = total = 0
    print(f"| noise | windows | with a suspect | slow rank x {FACTOR} found | another one blamed |")
    print("|---|---:|---:|---:|---:|")
    for noise in KINDS:
        wrong, healthy = false_suspects(noise, count)
        found, others, slow = found_slow(noise, max(1, count // 5))
        blamed, total = blamed + wrong, total + healthy
        print(f"| {noise} | {healthy} | {wrong} | {found} of {slow} | {others} |", flush=True)
    upper = (blamed + 1.92) / total + 1.96 * np.sqrt((blamed + 0.96) / total**2)
    print(f"\nwindows with a false suspect: {blamed} of {total} (95 % upper bound {upper:.2%})")


if __name__ == "__main__":
    main()

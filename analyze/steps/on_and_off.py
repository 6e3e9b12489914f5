"""By how much steps in which something is so are longer than the other steps of the same ranks.

What comes and goes shows its cost by itself, whatever a replay says: both kinds of steps see the
same machine. But all that differs between them is in the difference: what else is slow in the same
steps makes it too large, and what is slow in the others makes it too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from .windows import StepWindows

MIN_STEPS = 4
"""Least number of steps of either kind."""
MIN_RUNS = 2
"""Least number of times that it comes: what has changed once may have changed for another reason."""


class Longer(NamedTuple):
    """Steps with something against those without."""

    steps: int
    others: int
    longer_ns: float
    """Difference of their means, averaged over the ranks."""
    error_ns: float
    """Its standard error (Welch)."""

    def of_mean_step(self, deviates: float = 0.0) -> float:
        """Return by how much they make the mean step longer, ns.

        Args:
            deviates: Standard errors to add.
        """
        part = self.steps / (self.steps + self.others)
        return part * (self.longer_ns + deviates * self.error_ns)


def longer_steps(windows: StepWindows, runs: Sequence[tuple[int, int]]) -> Longer | None:
    """Compare the steps of some runs with the others; None where that tells nothing.

    Args:
        windows: The analysed steps.
        runs: First and last step of each run.
    """
    if not windows.has_marks or len(runs) < MIN_RUNS:
        return None
    frame = windows.frame
    length = (frame["end_ns"] - frame["start_ns"]).groupby(frame["step"].to_numpy()).mean()
    steps = length.index.to_numpy()
    inside = np.zeros(len(steps), dtype=bool)
    for first, last in runs:
        inside |= (steps >= first) & (steps <= last)
    with_it, without = length[inside], length[~inside]
    if min(len(with_it), len(without)) < MIN_STEPS:
        return None
    error = sqrt(with_it.var() / len(with_it) + without.var() / len(without))
    return Longer(len(with_it), len(without), float(with_it.mean() - without.mean()), float(error))

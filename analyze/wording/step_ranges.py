"""Steps as runs of numbers without a gap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .quantities import steps as step_words


def step_ranges(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of steps without a gap, as sentences have them.

    >>> step_ranges([9, 3, 4, 5])
    [(3, 5), (9, 9)]
    """
    numbers = np.array(sorted(set(steps)), dtype=np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs]


def listed_steps(steps: Sequence[int]) -> str:
    """Return steps as text: ``step 3``, ``steps 3-5 and 9``."""
    return step_words(step_ranges(steps))

"""A rank against its own past.

The past is a running mean that steps join only after a delay, so that a slow-down which
has just begun does not count as usual. Such a mean of n steps is uncertain by
``s / sqrt(n)``, for as long as it lasts; the threshold is that of a reference value
which is lower by as much (``certain_reference``), so that an unlucky baseline gives no
false alarm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cube import BoolArray, FloatArray
from .cusum import PageSum

BASELINE_DEVIATE = 1.5
"""Standard errors by which the past may be wrong."""
MIN_REFERENCE_SHARE = 0.4
SUSPICION = 0.5
"""From this share of its threshold on, a rank's present is kept out of its past."""


@dataclass(slots=True)
class OwnHistory:
    """Running means of scores by rank, and the sums of what exceeds them."""

    mean: FloatArray
    count: FloatArray
    waiting: list[FloatArray]
    """Scores of the last steps, which are not yet part of the past; as many as the delay."""
    delay: int
    sums: PageSum

    @classmethod
    def after(cls, baseline: FloatArray, delay: int, sizes: int) -> OwnHistory:
        """Return the history that baseline scores [step, rank] make."""
        known = np.isfinite(baseline)
        count = known.sum(axis=0).astype(np.float64)
        total = np.where(known, baseline, 0.0).sum(axis=0)
        mean = np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
        return cls(mean, count, [], delay, PageSum.empty(baseline.shape[1], sizes))

    def excess(self, scores: FloatArray) -> FloatArray:
        """Return how far scores of one step lie above the past of their ranks."""
        return np.where(self.count > 0, scores - self.mean, np.nan)

    def add(
        self, step: int, standard: FloatArray, reference: FloatArray, border: FloatArray
    ) -> None:
        """Add the excess of one step, in deviations, to the sums."""
        self.sums.add(step, standard, reference, border)

    def learn(self, scores: FloatArray, calm: BoolArray, memory: int) -> None:
        """Let the oldest waiting step of the ranks that are calm join their past."""
        self.waiting.append(scores)
        if len(self.waiting) <= self.delay:
            return
        old = self.waiting.pop(0)
        use = calm & np.isfinite(old)
        self.count = np.where(use, np.minimum(self.count + 1.0, memory), self.count)
        fresh = np.isnan(self.mean)
        moved = self.mean + (old - self.mean) / np.maximum(self.count, 1.0)
        self.mean = np.where(use, np.where(fresh, old, moved), self.mean)


def certain_reference(reference: FloatArray, count: FloatArray) -> FloatArray:
    """Return the reference value that is left when the past is uncertain.

    Args:
        reference: Reference value of the sums, in deviations of a step.
        count: Steps in the past.
    """
    left = reference - BASELINE_DEVIATE / np.sqrt(np.maximum(count, 1.0))
    return np.asarray(np.maximum(left, MIN_REFERENCE_SHARE * reference))

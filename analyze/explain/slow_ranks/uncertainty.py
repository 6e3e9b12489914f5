"""How wrong scores may be: noise, and what differs between healthy ranks for good."""

from __future__ import annotations

import msgspec
import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .cube import Cube, IntArray
from .noise import Noise
from .normalise import Line, replica_sigma
from .settings import DetectionSettings

MIN_RANKS_FOR_SPREAD = 8
MIN_REPLICAS_FOR_SPREAD = 4
"""With fewer, one slow rank makes the difference of several."""
ASSUMED_RANKS = 8
"""Ranks that the assumed spread counts as, beside those that show one."""
NOISE_SHARE = 0.25
"""Least noise that a step is given, as a share of the smallest slow-down looked for."""


class Comparison(msgspec.Struct, frozen=True):
    """What each rank is compared with."""

    cube: Cube
    trusted: BoolArray
    """Ranks that others are compared with [lane, replica, place]."""
    replicas: IntArray
    """Trusted replicas of each rank."""
    amplification: FloatArray
    """What the ranks that tell the work add to a deviation, by rank (``Line``)."""

    @property
    def references(self) -> FloatArray:
        """Return how many independent ranks the median of the replicas is worth.

        The variance of a median of n normal values is that of a mean times about
        ``pi / 2`` from three on.
        """
        count = self.replicas.astype(np.float64)
        return np.where(count >= 3, count * 2.0 / np.pi, np.maximum(count, 1.0))


def comparison_of(cube: Cube, trusted: BoolArray, line: Line) -> Comparison:
    """Return what each rank is compared with when only some are trusted."""
    others = trusted.sum(axis=1, keepdims=True) - trusted
    return Comparison(
        cube=cube,
        trusted=trusted,
        replicas=cube.by_rank(others).astype(np.int64),
        amplification=cube.floats(line.amplification(trusted)),
    )


class Doubt(msgspec.Struct, frozen=True):
    """How wrong scores may be, by rank."""

    noise: Noise
    lasting: FloatArray
    """Deviation of differences to the replicas that do not average out; NaN without replicas."""
    wander: FloatArray
    """Deviation by which the speed of a healthy rank changes slowly."""
    floor: float
    """Least deviation of a step."""

    @property
    def step(self) -> FloatArray:
        """Return the deviation of one step."""
        return np.asarray(np.maximum(self.noise.sigma, self.floor))

    @property
    def variance(self) -> FloatArray:
        """Return the variance of a mean over steps, times their number."""
        return np.asarray(self.step**2 * self.noise.inflation)

    def error(self, steps: float, before: float | None = None) -> FloatArray:
        """Return the standard error of a mean score by rank.

        Args:
            steps: Steps that are averaged.
            before: Steps of the past that they are compared with; None: with the replicas.
        """
        lasting = self.lasting**2
        if before is not None:
            lasting = self.variance / max(before, 1.0) + self.wander**2
        return np.asarray(np.sqrt(self.variance / max(steps, 1.0) + lasting))


def doubt_of(
    noise: Noise,
    level: FloatArray,
    comparison: Comparison,
    steps: float,
    settings: DetectionSettings,
) -> Doubt:
    """Return how wrong scores may be.

    Args:
        noise: Noise of the scores.
        level: Mean scores against the replicas so far, by rank.
        comparison: What the ranks are compared with.
        steps: Steps that the replicas' expectation is a mean of.
        settings: What healthy ranks may differ by.
    """
    cube, amplification = comparison.cube, comparison.amplification
    trusted = cube.by_rank(comparison.trusted).astype(bool)
    error = float(np.median(noise.error(steps)))
    spread = healthy_spread((level / amplification)[trusted], error, cube.shape[1], settings)
    reference = cube.floats(replica_sigma(cube.fill(noise.sigma), comparison.trusted))
    reference = reference * np.sqrt(noise.inflation / steps)
    count = comparison.references
    unlike = (spread**2 + settings.wander**2) * amplification**2
    variance = unlike * (1.0 + 1.0 / count) + reference**2 / count
    return Doubt(
        noise=noise,
        lasting=np.where(comparison.replicas > 0, np.sqrt(variance), np.nan),
        wander=settings.wander * amplification,
        floor=NOISE_SHARE * settings.smallest,
    )


def healthy_spread(
    levels: FloatArray, error: float, replicas: int, settings: DetectionSettings
) -> float:
    """Return the spread of constant differences: as assumed, or what the ranks show.

    Args:
        levels: Mean scores of the trusted ranks against their replicas.
        error: Standard error of such a mean without the replicas' part.
        replicas: How many the job has.
        settings: The spreads that are assumed.
    """
    known = levels[np.isfinite(levels)]
    if len(known) < MIN_RANKS_FOR_SPREAD or replicas < MIN_REPLICAS_FOR_SPREAD:
        return settings.spread
    seen = 1.4826 * float(np.median(np.abs(known - np.median(known))))
    others = replicas - 1
    # A difference to the median of others has their variance, too.
    share = 1.0 + (np.pi / 2 if others >= 3 else 1.0) / others
    own = max(seen**2 / share - error**2, 0.0)
    weight = len(known) / (len(known) + ASSUMED_RANKS)
    return float(np.sqrt(weight * own + (1.0 - weight) * settings.large_job_spread**2))

"""From noise and settings to thresholds, for the recorded window and the running job alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .cube import FloatArray, IntArray
from .cusum import threshold_for
from .history import certain_reference
from .noise import Noise, quantile
from .settings import DetectionSettings

MIN_RANKS_FOR_SPREAD = 8
MIN_REPLICAS_FOR_SPREAD = 4
"""With fewer, one slow rank makes the difference of several."""
ASSUMED_RANKS = 8
"""Ranks that the assumed spread counts as, beside those that show one."""
HEALTHY_SPREADS = 2.0
"""Spreads of a constant difference that a stretch of steps must stand out from."""
NOISE_SHARE = 0.25
"""Least noise that a step is given, as a share of the smallest slow-down looked for."""


def references_of(sigma: FloatArray, settings: DetectionSettings) -> FloatArray:
    """Return the reference values [size, rank]: half of each slow-down that is looked for."""
    sizes = np.array([settings.smallest, settings.large])
    return sizes[:, None] / 2 / sigma


def own_border(
    reference: FloatArray, past: npt.ArrayLike, settings: DetectionSettings
) -> FloatArray:
    """Return the threshold of the sums of all ranks, given how many steps their past has."""
    steps = settings.steps_between_false_alarms * reference.size
    count = np.broadcast_to(np.asarray(past, dtype=np.float64), reference.shape)
    return threshold_for(steps, certain_reference(reference, count))


def deviation_of_step(noise: Noise, settings: DetectionSettings) -> FloatArray:
    """Return the deviation by which scores are standardised, correlation included."""
    sigma = noise.sigma * np.sqrt(noise.inflation)
    return np.asarray(np.maximum(sigma, NOISE_SHARE * settings.smallest))


def reference_count(replicas: IntArray) -> FloatArray:
    """Return how many independent ranks a median of replicas is worth.

    The variance of a median of n normal values is that of a mean times about
    ``pi / 2`` from three on.
    """
    count = replicas.astype(np.float64)
    return np.where(count >= 3, count * 2.0 / np.pi, np.maximum(count, 1.0))


def lasting_deviation(
    spread: float, reference_error: FloatArray, references: FloatArray
) -> FloatArray:
    """Return the deviation of differences to the replicas that stay as long as the window.

    Args:
        spread: Constant differences between healthy ranks.
        reference_error: Standard error of the mean of one replica.
        references: How many replicas there are.
    """
    return np.asarray(
        np.sqrt(spread**2 * (1.0 + 1.0 / references) + reference_error**2 / references)
    )


def healthy_offset(level: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return the part of a mean difference to the replicas that healthy ranks may have."""
    reach = HEALTHY_SPREADS * deviation
    return np.asarray(np.clip(level, -reach, reach))


def level_strength(
    level: FloatArray, error: FloatArray, noise: Noise, settings: DetectionSettings
) -> FloatArray:
    """Return mean scores over what noise leaves to a healthy rank: an alarm from 1 on."""
    border = quantile(settings.false_alarms_per_window / len(level), noise.degrees)
    return np.asarray(level / error / border)


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
    # A difference to others has their variance, too.
    share = 1.0 + 1.0 / float(reference_count(np.array([replicas - 1]))[0])
    own = max(seen**2 / share - error**2, 0.0)
    weight = len(known) / (len(known) + ASSUMED_RANKS)
    return float(np.sqrt(weight * own + (1.0 - weight) * settings.large_job_spread**2))

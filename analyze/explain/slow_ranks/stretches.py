"""Stretches of steps in which a rank is slower than before, or than its replicas.

The statistic is the generalised likelihood ratio of a raised mean (Lorden, *Annals of
Mathematical Statistics* 1971) over the last steps (window-limited: Lai, *Journal of the
Royal Statistical Society B* 1995): the cumulative sum since each possible first bad step,
as a multiple of its standard error; the largest one counts. The error has a part that is
drawn anew with every step (noise) and one that stays (an uncertain past, constant
differences between healthy ranks).

For n steps with a share f of the variance drawn anew, the rate at which noise alone
exceeds a border c is, per step (Siegmund and Venkatraman, *Annals of Statistics* 1995)::

    c^3 phi(c) (f / 2n)^2 nu(c sqrt(f / n))^2,    nu(x) = exp(-0.583 x)

At the shortest and the longest n, ``c phi(c) (f / n) nu(c sqrt(2 f / n))`` is added for what
would have been larger beyond them. The part that stays exceeds c in a share Q(c) of all
cases, each of which lasts for a number of steps. Borders are set so that the sum over n is
the wanted rate; long stretches get more of it than short ones, for few steps show only large
slow-downs, which exceed any border.
"""

from __future__ import annotations

from functools import lru_cache, reduce

import msgspec
import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .cube import IntArray

SHORTEST, LONGEST = 3, 40
"""Steps of a stretch: a single step may be slow for reasons that no theory of noise covers."""
REACH = 5.0
"""Deviations of a step beyond which a score is drawn in, so that no single one makes a stretch."""
NEAR = 5
"""Steps of which ``SHORTEST`` must share an excess for it to count in full: every other step slow
is a slow rank as well, while independent stalls seldom come so close together."""
_OVERSHOOT = 0.583
_GRID = 40
"""Parts in which the share of the variance that is drawn anew is tabled."""
_HALVINGS = 30
_FEW = 64
"""Ranks below which a call for each row costs more than strides do; the sums are the same to the last bit."""


@lru_cache(maxsize=64)
def border_table(rate: float, lasting_steps: float, longest: int = LONGEST) -> FloatArray:
    """Return borders [steps of the stretch, share drawn anew] for a rate of false alarms.

    Args:
        rate: False alarms per step and rank.
        lasting_steps: Steps for which the part of the error that stays is the same.
        longest: Steps of the longest stretch that there can be.
    """
    length = np.arange(1, LONGEST + 1, dtype=np.float64)[:, None]
    fresh = np.linspace(0.0, 1.0, _GRID + 1)[None]
    budget = length / length[SHORTEST - 1 : max(longest, SHORTEST)].sum()
    is_end = (length == SHORTEST) | (length == max(longest, SHORTEST))
    low, high = np.full((LONGEST, _GRID + 1), 1.5), np.full((LONGEST, _GRID + 1), 12.0)
    for _ in range(_HALVINGS):
        border = (low + high) / 2
        density = np.exp(-(border**2) / 2) / np.sqrt(2 * np.pi)
        pace = (fresh / (2 * length)) ** 2 * np.exp(
            -2 * _OVERSHOOT * border * np.sqrt(fresh / length)
        )
        sliding = fresh / length * np.exp(-_OVERSHOOT * border * np.sqrt(2 * fresh / length))
        noise = border**3 * pace + np.where(is_end, border * sliding, 0.0)
        tail = density * border / (border**2 + 1.0)
        alarms = density * noise / budget + tail / lasting_steps
        low, high = np.where(alarms > rate, border, low), np.where(alarms > rate, high, border)
    return high


class Budget(msgspec.Struct, frozen=True):
    """How often a test may blame a healthy rank."""

    rate: float
    """False alarms per step and rank."""
    lasting_steps: float
    """Steps for which the part of the error that stays is the same."""
    longest: int = LONGEST
    """Steps of the longest stretch that there can be."""


@lru_cache(maxsize=256)
def _student_table(budget: Budget, degrees: float) -> FloatArray:
    """Return the borders for noise with so many degrees of freedom.

    Student's t by Wallace's approximation, ``sqrt(v (exp(z^2 (v - 1.5) / (v - 1)^2) - 1))``.
    """
    normal = border_table(budget.rate, budget.lasting_steps, budget.longest)
    exponent = np.minimum(normal**2 * (degrees - 1.5) / (degrees - 1.0) ** 2, 60.0)
    return np.asarray(np.sqrt(degrees * np.expm1(exponent)))


def borders(fresh: FloatArray, budget: Budget, degrees: float) -> FloatArray:
    """Return the borders of stretches [steps, rank], for noise that was estimated.

    Args:
        fresh: Share of the variance that is drawn anew with each step [steps, rank]; NaN
            where nothing is known.
        budget: How often a healthy rank may be blamed.
        degrees: Degrees of freedom behind the noise.
    """
    table = _table(budget, degrees)
    return np.asarray(table[np.arange(len(fresh))[:, None], _columns(fresh)])


def least_borders(fresh: FloatArray, length: int, budget: Budget, degrees: float) -> FloatArray:
    """Return the least borders of stretches of one length, for this share or any larger one.

    Args:
        fresh: Share of the variance that is drawn anew with each step.
        length: Steps of the stretches.
        budget: How often a healthy rank may be blamed.
        degrees: Degrees of freedom behind the noise.
    """
    row = _table(budget, degrees)[length - 1]
    return np.asarray(np.minimum.accumulate(row[::-1])[::-1][_columns(fresh)])


def _table(budget: Budget, degrees: float) -> FloatArray:
    return _student_table(budget, float(f"{max(degrees, 2.0):.2g}"))


def _columns(fresh: FloatArray) -> IntArray:
    """Return the column of a table of borders for each share; the first where it is not known."""
    known = np.where(fresh >= 0, fresh, 0.0)
    return np.asarray((known * _GRID + 0.5).astype(np.int64))


class Means(msgspec.Struct, frozen=True):
    """Means over the last 1, 2, 3 … steps, and over all before them, [steps, rank]."""

    recent: FloatArray
    count: FloatArray
    """Steps with a score among the last ones."""
    before: FloatArray
    before_count: FloatArray


class Stretches(msgspec.Struct):
    """The last scores of all ranks; of earlier ones their mean and number are kept."""

    recent: FloatArray
    """[step, rank], the oldest first; ``LONGEST`` steps at most."""
    past: FloatArray
    count: FloatArray
    """Steps behind ``past``, by rank."""

    @classmethod
    def empty(cls, ranks: int, past_steps: float = 0.0) -> Stretches:
        """Return no scores, after a past of so many steps whose mean is 0."""
        return cls(np.empty((0, ranks)), np.zeros(ranks), np.full(ranks, past_steps))

    def add(
        self,
        scores: FloatArray,
        calm: BoolArray,
        memory: int,
        reach: FloatArray | float = np.inf,
    ) -> None:
        """Add the scores of one step; the oldest recent ones join the past.

        Args:
            scores: [rank]; NaN where absent.
            calm: Ranks whose past may move; that of a suspect stays as it was.
            memory: Steps that the past is a mean of, at most.
            reach: How far a score that joins the past may lie from the rank's middle.
        """
        self.recent = np.concatenate([self.recent, scores[None]])
        if len(self.recent) <= LONGEST:
            return
        middle = middle_of(self.recent, np.isfinite(self.recent))
        old, self.recent = self.recent[0], self.recent[1:]
        old = np.clip(old, middle - reach, middle + reach)
        self.past, self.count = self.joined_by(old, calm, memory)

    def joined_by(
        self, old: FloatArray, calm: BoolArray, memory: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the mean and the number of the past once scores [rank] of one step have joined it.

        Args:
            old: The scores, drawn in; NaN where absent.
            calm: Ranks whose past may move.
            memory: Steps that the past is a mean of, at most.
        """
        use = calm & np.isfinite(old)
        count = np.where(use, np.minimum(self.count + 1.0, memory), self.count)
        step = np.where(use, old - self.past, 0.0) / np.maximum(count, 1.0)
        return self.past + step, count

    def replace(self, scores: FloatArray, blamed: BoolArray) -> None:
        """Take other scores [step, rank] for the recent ones; of blamed ranks gaps stay."""
        gap = np.zeros(scores.shape, dtype=bool)
        gap[: len(self.recent)] = np.isnan(self.recent) & blamed
        self.recent = np.where(gap, np.nan, scores)

    def forget(self, ranks: BoolArray, *, last: int = 0, keep: int = 0) -> None:
        """Leave out the last steps of some ranks, or all but the last to keep.

        What they, or those that they were compared with, did there is no measure of what comes.
        """
        self.recent = self.recent.copy()
        steps = slice(-last, None) if last else slice(0, max(len(self.recent) - keep, 0))
        self.recent[steps, ranks] = np.nan

    def means(self, reach: FloatArray) -> Means:
        """Return the means of all stretches that end now, single steps drawn in.

        The middle is that of the recent scores alone: a past of few steps may be an outlier
        itself, and the healthy scores would be drawn up to it.

        Args:
            reach: How far a score may lie from the rank's middle [rank], unless others near
                it lie as far.
        """
        known = np.isfinite(self.recent)
        middle = middle_of(self.recent, known)
        excess = np.where(known, self.recent - middle, -np.inf)
        upper = np.maximum(reach, shared(excess))
        near, full = (
            _summed_back(np.where(known, np.minimum(np.maximum(excess, -reach), most), 0.0))
            for most in (reach, upper)
        )
        count = _summed_back(known.astype(np.float64))
        before_count = self.count + count[-1] - count
        before = (self.count * (self.past - middle) + near[-1] - near) / np.maximum(
            before_count, 1.0
        )
        return Means(
            recent=middle + full / np.maximum(count, 1.0),
            count=count,
            before=middle + before,
            before_count=before_count,
        )


class Strongest(msgspec.Struct, frozen=True):
    """The stretch of each rank that exceeds its border most, of those that end now."""

    strength: FloatArray
    """Statistic over border: an alarm from 1 on; 0 where nothing can be said."""
    length: IntArray
    """Steps of the stretch."""

    @classmethod
    def none(cls, ranks: int) -> Strongest:
        """Return that there is none."""
        return cls(np.zeros(ranks), np.zeros(ranks, np.int64))


def strongest(strength: FloatArray, count: FloatArray) -> Strongest:
    """Return the strongest of the stretches [steps, rank] that hold enough scores.

    Args:
        strength: Statistic over border; NaN where nothing can be said.
        count: Steps with a score.
    """
    if len(strength) < SHORTEST:
        return Strongest.none(strength.shape[1])
    usable = np.where(np.isfinite(strength) & (count >= SHORTEST), strength, 0.0)
    length = usable.argmax(axis=0)
    return Strongest(usable[length, np.arange(strength.shape[1])], length + 1)


class Peak(msgspec.Struct):
    """The strongest stretch of each rank over all steps that were looked at."""

    strength: FloatArray
    first: IntArray
    """Position of its first step."""
    last: IntArray
    """Position of its last step; -1 without one."""

    @classmethod
    def none(cls, ranks: int) -> Peak:
        """Return that nothing was seen yet."""
        return cls(np.zeros(ranks), np.zeros(ranks, np.int64), np.full(ranks, -1, np.int64))

    def see(self, position: int, found: Strongest) -> None:
        """Take in the stretches that end with a step."""
        higher = found.strength > self.strength
        self.strength = np.where(higher, found.strength, self.strength)
        self.first = np.where(higher, position + 1 - found.length, self.first)
        self.last = np.where(higher, position, self.last)

    def among(self, places: IntArray, ranks: int) -> Peak:
        """Return the same for more ranks: nothing was seen of those that are at no place."""
        whole = Peak.none(ranks)
        whole.strength[places], whole.first[places] = self.strength, self.first
        whole.last[places] = self.last
        return whole


def raised_part(excess: FloatArray, size: float) -> tuple[int, int]:
    """Return the most likely first and last position of a stretch with a raised mean.

    For normal scores it is the interval with the largest sum of ``excess - size / 2``.

    Args:
        excess: Scores of one rank against what they were before; NaN where absent.
        size: How much the mean is raised.
    """
    gain = np.concatenate([[0.0], np.cumsum(np.nan_to_num(excess - size / 2, nan=0.0))])
    lowest = np.minimum.accumulate(gain)
    last = int((gain - lowest).argmax())
    first = int(gain[: last + 1].argmin())
    return min(first, len(excess) - 1), max(last - 1, 0)


def shared(excess: FloatArray) -> FloatArray:
    """Return up to which level others near each score [step, rank] lie as high; -inf without.

    The largest of the third largest ones of all windows of ``NEAR`` steps that hold the step.
    """
    edge = np.full((NEAR - 1, excess.shape[1]), -np.inf)
    held = np.concatenate([edge, excess, edge])
    level = _middle_of_five(*(held[at : len(held) - NEAR + 1 + at] for at in range(NEAR)))
    return reduce(np.maximum, (level[at : len(level) - NEAR + 1 + at] for at in range(NEAR)))


def _middle_of_five(
    a: FloatArray, b: FloatArray, c: FloatArray, d: FloatArray, e: FloatArray
) -> FloatArray:
    """Return the third largest of five, element by element: much faster than to sort each five."""
    low, high = np.maximum(np.minimum(a, b), np.minimum(c, d)), np.maximum(a, b)
    high = np.minimum(high, np.maximum(c, d))
    return np.maximum(np.minimum(low, high), np.minimum(np.maximum(low, high), e))


def _summed_back(values: FloatArray) -> FloatArray:
    """Return the sums over the last 1, 2, 3 … rows; of many ranks row by row, as rows lie in memory."""
    if values.shape[1] < _FEW:
        return np.asarray(np.cumsum(values[::-1], axis=0))
    total = values[::-1].copy()
    for row in range(1, len(total)):
        total[row] += total[row - 1]
    return total


def middle_of(values: FloatArray, known: BoolArray) -> FloatArray:
    """Return the median of the known scores of each rank; 0 without."""
    ordered = np.sort(np.where(known, values, np.inf), axis=0)
    position = np.maximum(known.sum(axis=0) - 1, 0) // 2
    middle = ordered[position, np.arange(values.shape[1])]
    return np.where(np.isfinite(middle), middle, 0.0)

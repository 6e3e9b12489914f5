"""Which ranks of thousands are worth following step by step.

The tests on slow ranks compare each rank with the replicas of its place, thoroughly. But 32 healthy replicas
say what is usual as well as a thousand do. So these are followed, and the replicas of ranks that stand out in a quick
look at all. Its borders are lower than those of the tests, for a border that is too low costs time only: the
tests decide. They count all ranks, looked at closely or not, when they ask what chance does. The quick look can miss a
rank that the tests would just blame: it knows fewer stretches, and no kinds of passes.

The quick look takes from each step what the rank's place usually needs, and what its whole replica needs more: the work
of its microbatches. Three things stand out then: a level, a stretch of steps, and single steps of which there
are many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from meshscope.probe.schema.layout import ParallelLayout

from ..explain.slow_ranks.cube import Cube, cube_of
from ..explain.slow_ranks.known_values import median_of_rows
from ..tables.arrays import BoolArray, FloatArray, IntArray
from ..tables.threads import map_in_threads
from .survey import Survey, SurveyArray

USUAL_REPLICAS, USUAL_RANKS = 32, 512
"""At least so many are followed, whatever stands out."""
USUAL_RUNS = 4
"""The replicas that are followed lie beside each other in so many runs, so that few files hold them."""
MOST_FOLLOWED = 0.75
"""With a larger share to follow, all ranks are."""
STANDS_OUT, _LOW = 3.0, 0.1
"""A rank is followed that is so many times as far above the median as the tenth of all is below it that is lowest. In
normal noise these are 3.8 deviations. Slow ranks do not widen the lower half, unless most are slow."""
_TENFOLD, _THOUSAND = 1.2, 1000
"""The strongest of many stretches has a longer upper half: a tenth as many healthy ranks are so much further above. Among ten times
as many ranks the tests ask for that much more, too."""
MOST_STANDING_OUT = 16
"""Ranks that are followed for one of the three things, the strongest: no more can be found slow."""
_LEAST_STEPS = 3
"""Single steps that are many, at least."""
_SAMPLED = 256
"""Steps that show the noise of a rank."""
_VOICES = 63
"""Replicas that show what is usual at a place."""
_LEAST_PLACES, _PLACES = 3, 7
"""Places that show the work of a replica: of two, either may be the slow one."""
_RANKS = 512
"""Ranks that are looked at together, by each thread."""
_REPLICAS = 32
"""Replicas that are looked at together, so that their steps stay in the cache."""
_BLOCK = 8
"""Steps of the shortest stretch."""
_REACH, _SINGLE = 6.0, 4.0
"""Deviations that a step is drawn in to, and from which on it is a single one."""
_TO_DEVIATION = 1.4826
_BELOW, _SEEN_BELOW = 3.0, 0.995
"""Deviations to which short steps are drawn in, and the share of a normal variance that is left."""
_LEAST_NOISE = 1e-4
"""Noise of a rank, at least, as a share of its work."""


def followed(survey: Survey, layout: ParallelLayout | None, *, knows_work: bool) -> BoolArray:
    """Return which ranks to follow, by position; all where that saves little.

    Args:
        survey: What a look at all rows keeps.
        layout: The mesh; without one each rank counts as a replica.
        knows_work: Whether the tests know the work of each step. The quick look does not. Where no third rank of a
            replica shows it, unequal work would hide a slow rank: then all are followed.
    """
    cube = cube_of(tuple(survey.ranks.tolist()), layout)
    usual = _usual_replicas(cube)
    size = len(cube.ranks) / cube.shape[1]
    is_blind = knows_work and size < _LEAST_PLACES
    if is_blind or len(usual) * size > MOST_FOLLOWED * len(cube.ranks):
        return np.ones(len(cube.ranks), dtype=bool)
    chosen = np.isin(cube.replica, [*usual, *cube.replica[standing_out(survey.own_s, cube)]])
    return np.ones_like(chosen) if chosen.mean() > MOST_FOLLOWED else chosen


def standing_out(own_s: SurveyArray, cube: Cube) -> IntArray:
    """Return the positions of the ranks that stand out; those that do most for each of the three things.

    Args:
        own_s: Own work [rank, step].
        cube: Where the ranks are.
    """
    place = cube.lane * cube.shape[2] + cube.place
    usual = np.stack(
        [
            median_of_rows(own_s[_some(np.flatnonzero(place == at), _VOICES)])
            for at in np.unique(place)
        ]
    )
    place = np.unique(place, return_inverse=True)[1]
    # An evaluation is a step without passes: it says nothing of anybody.
    steps = np.asarray((usual > 0).any(axis=0))
    if not steps.any():
        return np.zeros(0, dtype=np.int64)
    shown = _work(own_s, usual, place, cube)
    row = shown.row_of(cube.replica)

    def signs_of(part: slice) -> _Signs:
        return _Signs.of(_excess(own_s[part], usual[place[part]] * shown.times[row[part]], steps))

    by_rank = _Signs.joined(map_in_threads(signs_of, _in_parts(len(own_s))))
    found = by_rank.outstanding()
    if len(shown.replicas):
        of_replicas = shown.of_replicas()
        by_replica = _Signs.joined(
            _Signs.of(of_replicas[part][:, steps] - np.float32(1.0))
            for part in _in_parts(len(of_replicas))
        )
        found |= np.isin(cube.replica, shown.replicas[by_replica.outstanding()])
    return np.flatnonzero(found)


def _usual_replicas(cube: Cube) -> IntArray:
    """Return the replicas that show what is usual, in a few runs that are spread evenly."""
    replicas = cube.shape[1]
    wanted = max(USUAL_REPLICAS, -(-USUAL_RANKS * replicas // len(cube.ranks)))
    if wanted >= replicas:
        return np.arange(replicas)
    each = -(-wanted // USUAL_RUNS)
    starts = np.linspace(0, replicas - each, USUAL_RUNS).astype(np.int64)
    return np.unique(starts // each * each + np.arange(each)[:, None])


class _Work(NamedTuple):
    """How much more work than usual replicas had."""

    replicas: IntArray
    """Those that show it."""
    times: SurveyArray
    """[row, step] as most places of a replica say; a last row of ones is for replicas that show nothing."""
    rows: tuple[IntArray, IntArray]
    """By replica that shows it: what its first voices say, and its second ones. With few places both are one row."""
    is_first: BoolArray
    """By rank: whether it is a first voice."""

    def row_of(self, replica: IntArray) -> IntArray:
        """Return for the rank at each position the row of its replica in which it has no voice itself.

        Else it would be as usual wherever it is the median, and look calmer than it is.
        """
        first, second = np.full((2, int(replica.max()) + 1), len(self.times) - 1)
        first[self.replicas], second[self.replicas] = self.rows
        return np.where(self.is_first, second[replica], first[replica])

    def of_replicas(self) -> SurveyArray:
        """Return [replica, step] what all voices say."""
        first, second = self.rows
        return (self.times[first] + self.times[second]) / np.float32(2.0)


def _work(own_s: SurveyArray, usual: SurveyArray, place: IntArray, cube: Cube) -> _Work:
    """Return how much more work than usual replicas had."""
    ranks = np.flatnonzero(np.asarray((usual > 0).any(axis=1))[place])
    ranks = ranks[np.argsort(cube.replica[ranks], kind="stable")]
    bounds = np.searchsorted(cube.replica[ranks], np.arange(cube.shape[1] + 1))
    replicas = np.flatnonzero(np.diff(bounds) >= _LEAST_PLACES)
    voices = [_voices(ranks[bounds[at] : bounds[at + 1]]) for at in replicas]
    heard = [first for first, _ in voices] + [second for _, second in voices if len(second)]
    is_split = np.array([bool(len(second)) for _, second in voices], dtype=bool)
    first, second = np.arange(len(replicas)), np.arange(len(replicas))
    second[is_split] = len(replicas) + np.arange(int(is_split.sum()))
    is_first = np.zeros(len(own_s), dtype=bool)
    is_first[np.concatenate([ranks[:0], *heard[: len(replicas)]])] = True
    times = np.ones((len(heard) + 1, own_s.shape[1]), dtype=np.float32)
    sizes = np.array([len(own) for own in heard])
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        for part in np.array_split(rows, -(-len(rows) // _REPLICAS)):
            own = np.array([heard[row] for row in part]).T
            middle = median_of_rows(_times(own_s[own], usual[place[own]]))
            # Without passes of its own a replica says nothing of its work.
            times[part] = np.where(middle > 0, middle, 1.0)
    return _Work(replicas, times, (first, second), is_first)


def _voices(ranks: IntArray) -> tuple[IntArray, IntArray]:
    """Return ranks of a replica that show its work to all others, and ranks that show it to these; none of few."""
    some = _some(ranks, 2 * _PLACES)
    return (some, some[:0]) if len(some) < 2 * _LEAST_PLACES else (some[::2], some[1::2])


def _times(own_s: SurveyArray, expected_s: SurveyArray) -> SurveyArray:
    """Return how many times as long as expected each step takes; 1 where nothing is expected."""
    return np.divide(own_s, expected_s, out=np.ones_like(expected_s), where=expected_s > 0)


def _excess(own_s: SurveyArray, expected_s: SurveyArray, steps: BoolArray) -> SurveyArray:
    """Return by which share some steps take longer than expected [rank, step]."""
    times = _times(own_s, expected_s)
    return (times if steps.all() else times[:, steps]) - np.float32(1.0)


class _Signs(NamedTuple):
    """What may stand out of each rank, in any unit."""

    level: FloatArray
    stretch: FloatArray
    single: FloatArray
    """Single steps that are long, less those that are short."""

    @classmethod
    def of(cls, excess: SurveyArray) -> _Signs:
        """Return the signs of some ranks, given their excess [rank, step]."""
        steps = excess.shape[1]
        sample = excess[:, _some(np.arange(steps), _SAMPLED)]
        middle = np.median(sample, axis=1, keepdims=True)
        noise = _TO_DEVIATION * np.median(np.abs(sample - middle), axis=1, keepdims=True)
        noise = np.maximum(noise, _LEAST_NOISE)
        away = (excess - middle) / noise
        # A sample shows some ranks too calm by a quarter: then noise looks like slow steps.
        calm = np.maximum(_spread_below(away), np.float32(1.0))[:, None]
        noise *= calm
        away /= calm
        many = (away > _SINGLE).sum(axis=1) - (away < -_SINGLE).sum(axis=1)
        np.clip(away, -_REACH, _REACH, out=away)
        level = middle[:, 0] + noise[:, 0] * away.mean(axis=1)
        return cls(
            level.astype(np.float64),
            _strongest_stretch(away),
            many.astype(np.float64),
        )

    @classmethod
    def joined(cls, parts: Iterable[_Signs]) -> _Signs:
        """Return the signs of all ranks, given those of some after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def outstanding(self) -> BoolArray:
        """Return which ranks stand out from all of them, the strongest for each thing."""
        found = np.zeros(len(self.level), dtype=bool)
        fewest = (-np.inf, -np.inf, _LEAST_STEPS)
        more = _TENFOLD * max(np.log10(len(found) / _THOUSAND), 0.0) if len(found) else 0.0
        borders = (STANDS_OUT, STANDS_OUT + more, STANDS_OUT)
        for sign, least, times in zip(self, fewest, borders, strict=True):
            low, middle = np.quantile(sign, (_LOW, 0.5))
            border = middle + times * (middle - low)
            first = np.argsort(-sign, kind="stable")[:MOST_STANDING_OUT]
            found[first[(sign[first] > border) & (sign[first] >= least)]] = True
        return found


def _spread_below(away: SurveyArray) -> SurveyArray:
    """Return the deviation [rank] that the short steps show; slow steps do not widen it, and far ones are drawn in."""
    short = np.clip(away, -_BELOW, 0.0)
    squares = np.einsum("rs,rs->r", short, short)
    return np.asarray(np.sqrt(2.0 / _SEEN_BELOW / away.shape[1] * squares), dtype=np.float32)


def _strongest_stretch(away: SurveyArray) -> FloatArray:
    """Return by how many deviations the strongest stretch of each rank exceeds the mean of its other steps.

    Those of 1, 2, 4 ... blocks, and all that last to the end: what a rank is slow by goes on, mostly. Under noise alone the
    sum of a stretch of n of N steps less n means of all has n (1 - n / N) times the variance of a step.

    Args:
        away: Deviations [rank, step].
    """
    blocks = max(away.shape[1] // _BLOCK, 1)
    whole = away[:, -blocks * _BLOCK :].reshape(len(away), blocks, -1).sum(axis=2, dtype=np.float64)
    whole -= whole.mean(axis=1, keepdims=True)
    sums = np.zeros((len(away), blocks + 1))
    np.cumsum(whole, axis=1, out=sums[:, 1:])
    length = np.arange(blocks, 0, -1.0)
    spread = np.sqrt(_BLOCK * length * (1 - length / blocks))
    # All steps together are their own mean.
    strongest = (-sums[:, 1:-1] / spread[1:]).max(axis=1, initial=0.0)
    size = 1
    while size < blocks:
        largest = (sums[:, size:] - sums[:, :-size]).max(axis=1)
        strongest = np.maximum(strongest, largest / spread[blocks - size])
        size *= 2
    return np.asarray(strongest)


def _some(positions: IntArray, most: int) -> IntArray:
    """Return some positions, spread evenly."""
    if len(positions) <= most:
        return positions
    return positions[np.linspace(0, len(positions) - 1, most).round().astype(np.int64)]


def _in_parts(ranks: int) -> Iterator[slice]:
    for first in range(0, ranks, _RANKS):
        yield slice(first, first + _RANKS)

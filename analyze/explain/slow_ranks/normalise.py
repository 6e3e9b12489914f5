"""Work taken out of durations, so that what is left is the speed of a rank.

Two ranks that compute the same microbatch in different stages do the same work, so
their ratio does not depend on it. A stage with a fixed part (an output head, whose cost
grows with tokens and not with their squares) follows the work less than in proportion:
each place therefore has a *slope*, the regression of its relative duration on the mean
of the other places of its replica. Durations without common work have slope 0 and are
compared with the replicas alone.

``mean`` is the expected duration ``[lane, replica, place, kind]``; with ``u = d / mean - 1``
and ``z`` the mean of ``u`` over the other places, the score of an item is::

    d / mean / (1 + slope * z) - 1

All functions take and return arrays over the cube (``cube``); NaN marks what is absent.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .cube import Cube
from .known_values import known_mean, known_median, median_of_others, over_last

CLIP_DEVIATIONS = 1.7
"""Items further than this many deviations from their step's median are drawn in to it: Huber's
estimate of the mean, which heavy tails cost less than the plain one."""
HUBER_ROUNDS = 2
NOISIER = 2.0
"""A rank whose items scatter this much more than usual has a scale of its own."""
KNOWN_DEVIATIONS = 2.0
"""How much surer a common move must be where other stages show the work."""
MAX_RELATIVE_WORK = 3.0
"""Relative work beyond this is a stall, not a long sequence; kept out of the slopes."""
MIN_SLOPE_ERRORS = 3.0
MAX_SLOPE = 3.0
INDEPENDENT_SHARE = 0.75
"""Least variance between two places of a stage, as a share of that which other stages leave, for
them to be independent: it is 1 to 2 then, and 0 where one waits for the other."""
MIN_VOTERS = 3
"""With fewer, a median is one of the ranks, which may be the slow one."""
MEDIAN_DEVIATIONS = 2.5 * 1.25 * 1.58
"""Deviations, times that of a median over that of a mean, which make a common move real; times
that of a step over what the scatter within it leads to expect."""
MIN_EXPECTED = 0.05
"""Least expected duration, as a share of the mean."""


class Line(msgspec.Struct, frozen=True):
    """How the places follow the work of each other."""

    slope: FloatArray
    """[1, replica or 1, place, kind]."""
    block: int
    """Places of one stage, which do not explain each other."""
    blind: BoolArray
    """[1, replica or 1, place] whether nobody who is trusted tells the work that a place follows:
    it can be neither judged nor compared with."""

    @property
    def tells(self) -> bool:
        """Return whether some place follows another one."""
        return bool(self.slope.any())

    def expected(self, relative: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Return the relative duration that the other places lead to expect, and where they do.

        Where no place follows another one the first is a single 1 for all.

        Args:
            relative: ``u`` [lane, replica, place, kind, item]; NaN where not trusted.
        """
        if not self.tells:
            return np.ones((1,) * relative.ndim), np.zeros(relative.shape[:3], dtype=bool)
        others = mean_of_others(relative, self.block)
        slope = self.slope[..., None]
        known_cells = np.asarray((np.isfinite(others) & (slope > 0)).any(axis=(3, 4)))
        return np.maximum(1.0 + slope * np.nan_to_num(others), MIN_EXPECTED), known_cells

    def amplification(self, trusted: BoolArray) -> FloatArray:
        """Return what the references add to a deviation of a rank [lane, replica, place].

        A score holds the speeds of the ranks that tell its work: for n of them and a slope
        ``b``, independent deviations grow by ``sqrt(1 + b^2 / n)``. Where none does, it holds
        those of all others, whose common part was taken off.
        """
        stages = trusted.reshape(*trusted.shape[:2], -1, self.block).sum(axis=3)
        others = np.repeat(stages.sum(axis=2, keepdims=True) - stages, self.block, axis=2)
        slope = np.broadcast_to(self.slope.mean(axis=3), trusted.shape)
        known_cells = slope**2 / np.maximum(others, 1)
        everyone = max(int(trusted.sum()) - 1, 1)
        return np.asarray(np.sqrt(1.0 + np.where(slope > 0, known_cells, 1.0 / everyone)))


class Slopes(msgspec.Struct):
    """Running sums from which each place is regressed on any set of the others."""

    products: FloatArray
    """[place, place, kind] sum of u * u' over lanes, replicas, items and steps."""
    count: FloatArray
    """[place, kind] items behind the sums."""
    block: int
    """Places of one stage, which do not explain each other."""

    @classmethod
    def empty(cls, cube: Cube, kinds: int) -> Slopes:
        """Return sums of nothing."""
        places = cube.shape[2]
        return cls(np.zeros((places, places, kinds)), np.zeros((places, kinds)), cube.block)

    def add(self, step: FloatArray) -> None:
        """Add the items of one step.

        The deviation from the rank's own mean in the same step is used: a rank that is
        slow in the whole step does not tilt the line.
        """
        if step.shape[-1] == 1:
            # The only item of a rank is its own mean.
            self.count += np.isfinite(step).sum(axis=(0, 1, 4))
            return
        own = step / known_mean(step, axis=-1, keepdims=True) - 1.0
        usable = np.abs(own) <= MAX_RELATIVE_WORK
        u = np.where(usable, own, 0.0)
        for kind in range(step.shape[3]):
            flat = u[:, :, :, kind].transpose(2, 0, 1, 3).reshape(step.shape[2], -1)
            self.products[:, :, kind] += flat @ flat.T
        self.count += usable.sum(axis=(0, 1, 4))

    def line(self, trusted: BoolArray) -> Line:
        """Return the slopes on the trusted places of each replica; 0 unless larger than their error.

        The lanes of a replica share the work; a place that one of them does not trust is
        left out in all of them.
        """
        block = 1 if self._siblings_differ() else self.block
        patterns, of_replica = np.unique(trusted.all(axis=0), axis=0, return_inverse=True)
        slopes = np.stack([self._slope(pattern, block)[0] for pattern in patterns])
        slope = slopes[of_replica.reshape(-1)][None]
        follows = self._slope(np.ones(len(self.products), dtype=bool), block)[0].any(axis=-1)
        return Line(slope, block, np.asarray(follows & ~slope.any(axis=-1)))

    def _siblings_differ(self) -> bool:
        """Return whether the places of every stage have noise of their own.

        None of them waits for another one then, and each tells the work of the others. In a
        stage with unlike chunks they move alike, and no other stage tells how.
        """
        places = len(self.products)
        if self.block == 1 or places == self.block:
            return False
        _, rest = self._slope(np.ones(places, dtype=bool), self.block)
        own = np.einsum("jjc->jc", self.products)
        first = np.arange(0, places, self.block)
        second = first + 1
        apart = own[first] + own[second] - 2.0 * self.products[first, second]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = 2.0 * apart / (rest[first] + rest[second])
        known = ratio[np.isfinite(ratio)]
        return bool(len(known) and known.min() > INDEPENDENT_SHARE)

    def _slope(self, trusted: BoolArray, block: int) -> tuple[FloatArray, FloatArray]:
        """Return the slopes [place, kind] on the mean of the trusted places of other blocks.

        The second value is the sum of squares that they leave.
        """
        stage = np.arange(len(trusted)) // block
        others = (trusted[None] & (stage[:, None] != stage[None])).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            weights = others / others.sum(axis=1, keepdims=True)
            zu = np.einsum("jk,jkc->jc", weights, self.products)
            mixed = np.einsum("jk,klc->jlc", weights, self.products)
            zz = np.einsum("jlc,jl->jc", mixed, weights)
            uu = np.einsum("jjc->jc", self.products)
            slope = zu / zz
            rest = np.maximum(uu - slope * zu, 0.0)
            error = np.sqrt(rest / np.maximum(self.count - 1, 1) / zz)
            real = slope > MIN_SLOPE_ERRORS * error
        usable = np.isfinite(slope) & real
        return np.where(usable, np.clip(slope, 0.0, MAX_SLOPE), 0.0), rest


class Scores(msgspec.Struct, frozen=True):
    """How much slower than expected the ranks were in one step."""

    kinds: FloatArray
    """[lane, replica, place, kind] duration over expectation, averaged over the items."""
    total: FloatArray
    """[lane, replica, place] the same over all kinds, weighted by their time, less 1."""
    error: FloatArray
    """[lane, replica, place] standard error that the scatter of the items gives ``total``."""
    trim: FloatArray
    """[lane, replica, place, kind] the same over its value with outliers left as they are."""
    referenced: BoolArray
    """[lane, replica, place] whether another place shows the work."""


def step_scores(step: FloatArray, expected: FloatArray, line: Line, trusted: BoolArray) -> Scores:
    """Return the scores of one step.

    Args:
        step: Durations [lane, replica, place, kind, item].
        expected: Mean duration of an item [lane, replica, place, kind], of the rank's
            own past or of its replicas.
        line: How places follow each other's work.
        trusted: Ranks that others may be compared with [lane, replica, place].
    """
    raw = step / expected[..., None]
    referenced = np.zeros(raw.shape[:3], dtype=bool)
    if line.tells:
        reference = np.where(trusted[..., None, None], raw - 1.0, np.nan)
        model, referenced = line.expected(reference)
        raw /= model
    ratio, deviation = _drawn_in(raw)
    kinds = known_mean(ratio, axis=-1)
    count = over_last(np.isfinite(ratio).astype(np.int64))
    share = np.nan_to_num(count * expected)
    total = over_last(share)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = share / total[..., None]
        score = over_last(share * np.nan_to_num(kinds)) - 1.0
        if raw.shape[-1] == 1:
            # An only item is never drawn in, and has no scatter.
            trim, error = np.ones(kinds.shape), np.zeros(score.shape)
        else:
            trim = kinds / known_mean(raw, axis=-1)
            variance = (share * np.nan_to_num(deviation)) ** 2 / np.maximum(count, 1)
            error = np.sqrt(over_last(variance))
    seen = (total > 0) & ~line.blind
    return Scores(
        kinds=kinds,
        trim=np.where(np.isfinite(trim), trim, 1.0),
        total=np.where(seen, score, np.nan),
        error=np.where(seen, error, np.nan),
        referenced=referenced,
    )


def peer_scores(
    step: FloatArray, expected: FloatArray, mean: FloatArray, line: Line, trusted: BoolArray
) -> FloatArray:
    """Return the scores of one step against the replicas; NaN without.

    A place without a replica still tells the work of its step to the others, by its
    excess over its own mean.
    """
    known = np.isfinite(expected)
    trusted = trusted & np.broadcast_to(known.any(axis=-1), trusted.shape)
    scores = step_scores(step, np.where(known, expected, mean), line, trusted)
    return np.where(known.any(axis=-1), scores.total, np.nan)


def item_mean(step: FloatArray) -> FloatArray:
    """Return the mean duration of an item of each kind in one step."""
    return known_mean(step, axis=-1)


def replica_mean(mean: FloatArray, line: Line, trusted: BoolArray) -> FloatArray:
    """Return what the replicas of each rank take: their leave-one-out median, NaN without.

    The replicas had other work. Their means are first brought to the work of the median
    replica by what their other places took, for a median takes one place from one
    replica and the next from another.
    """
    axes = (0, 2, 3, 1)
    sound = np.where(trusted[..., None], mean, np.nan)
    middle = known_median(np.where(line.blind[..., None], np.nan, sound), axis=1, keepdims=True)
    alone = np.isfinite(sound).sum(axis=1, keepdims=True) < 2
    model, _ = line.expected(np.where(alone, np.nan, sound / middle - 1.0)[..., None])
    references = np.broadcast_to((trusted & ~line.blind)[..., None], mean.shape)
    even = (mean / model[..., 0]).transpose(axes)
    return median_of_others(even, references.transpose(axes)).transpose(0, 3, 1, 2)


def replica_sigma(sigma: FloatArray, trusted: BoolArray) -> FloatArray:
    """Return the noise of the replicas of each rank [lane, replica, place]; its own without."""
    axes = (0, 2, 1)
    others = median_of_others(sigma.transpose(axes), trusted.transpose(axes)).transpose(axes)
    return np.where(np.isfinite(others), others, sigma)


def common_mode(scores: Scores, trusted: BoolArray, steps: int = 1) -> FloatArray:
    """Return what the comparable ranks have in common in each step, to be taken off.

    The mean of all other ranks, those far from the median drawn in. Where the replicas of a place,
    three at least, move away from it together by more than their noise, their median. Where the
    other stages show the work, the job's own part must exceed its noise as well, for they have taken
    it out already. With up to three ranks, what both a rank and the others have: the median of its score,
    theirs, and 0, so that one that changes alone does not make another seem to change.

    Args:
        scores: Scores of one step or, one after the other along the lanes, of several.
        trusted: Ranks that count, of one step.
        steps: How many steps they are.
    """
    total = scores.total.reshape(steps, *trusted.shape)
    voting = np.broadcast_to(trusted, total.shape)
    voters = trusted.sum(axis=1, keepdims=True) - trusted
    own_place = median_of_others(total.swapaxes(2, 3), voting.swapaxes(2, 3)).swapaxes(2, 3)
    everyone = int(trusted.sum()) - trusted.astype(np.int64)
    error = np.nan_to_num(known_median(scores.error.reshape(steps, -1), axis=1))[
        :, None, None, None
    ]
    shared = _centre_of_others(total, voting, CLIP_DEVIATIONS * error)
    known_cells = scores.referenced.reshape(total.shape)
    noise = MEDIAN_DEVIATIONS * error * np.where(known_cells, KNOWN_DEVIATIONS, 1.0)
    calm = known_cells & (np.abs(shared) < noise / np.sqrt(np.maximum(everyone, 1)))
    shared = np.where(calm, 0.0, shared)
    apart = np.abs(own_place - shared) > noise / np.sqrt(np.maximum(voters, 1))
    shared = np.where(apart & (voters >= MIN_VOTERS), own_place, shared)
    others = own_place if trusted.shape[2] == 1 else shared
    few = np.clip(others, np.minimum(total, 0.0), np.maximum(total, 0.0))
    common = np.nan_to_num(np.where(everyone >= MIN_VOTERS, shared, few))
    return common.reshape(scores.total.shape)


def _centre_of_others(total: FloatArray, voting: BoolArray, reach: FloatArray) -> FloatArray:
    """Return the mean of all other ranks that vote, drawn in to a reach around their median.

    Args:
        total: Scores [step, lane, replica, place]; NaN where absent.
        voting: Ranks that count, of the same shape.
        reach: [step, 1, 1, 1].
    """
    usable = voting & np.isfinite(total)
    axes = (1, 2, 3)
    flat = np.where(usable, total, np.nan).reshape(len(total), -1)
    middle = np.nan_to_num(known_median(flat, axis=1))[:, None, None, None]
    near = np.where(usable, np.clip(total, middle - reach, middle + reach), 0.0)
    count = usable.sum(axis=axes, keepdims=True) - usable
    rest = near.sum(axis=axes, keepdims=True) - near
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, rest / count, np.nan)


def mean_of_others(values: FloatArray, block: int) -> FloatArray:
    """Return for each place the mean over the places of other blocks; NaN without.

    Args:
        values: [lane, replica, place, kind, item]; NaN counts as absent.
        block: Places of one block.
    """
    known = np.isfinite(values)
    lanes, replicas, places, kinds, items = values.shape
    split = (lanes, replicas, places // block, block, kinds, items)

    def outside(entries: FloatArray) -> FloatArray:
        inside = entries.reshape(split).sum(axis=3, keepdims=True)
        rest = inside.sum(axis=2, keepdims=True) - inside
        return np.broadcast_to(rest, split).reshape(values.shape)

    total, count = outside(np.where(known, values, 0.0)), outside(known.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, np.nan)


def _drawn_in(ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the items of each kind with outliers drawn in, and their deviation [..., kind]."""
    if ratio.shape[-1] == 1:
        return _single(ratio)
    centre = known_median(ratio, axis=-1, keepdims=True)
    deviation = 1.4826 * known_median(np.abs(ratio - centre), axis=-1, keepdims=True)
    # That of few items is a rough estimate; the usual one of the kind is better.
    usual = known_median(deviation.reshape(-1, deviation.shape[-2]), axis=0)[:, None]
    deviation = np.where(deviation > NOISIER * usual, deviation, usual)
    reach = CLIP_DEVIATIONS * deviation
    for _ in range(HUBER_ROUNDS):
        drawn = np.clip(ratio, centre - reach, centre + reach)
        centre = known_mean(drawn, axis=-1, keepdims=True)
    return drawn, deviation[..., 0]


def _single(ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the same where each kind has one item, which is its own centre: nothing is drawn in."""
    known = np.isfinite(ratio)
    seen = known.reshape(-1, ratio.shape[-2]).any(axis=0)
    deviation = np.broadcast_to(np.where(seen, 0.0, np.nan), ratio.shape[:-1])
    return np.where(known, ratio, np.nan), deviation

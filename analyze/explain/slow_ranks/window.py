"""The scores of a window of steps, which is scored as a whole, against the means of all its steps.

The window is a recorded one, or the first steps of a running job.

A single step of a rank may say nothing of what is usual. Such a step is scored as any other one. But it counts as what its work leads to expect in the means
that ranks are expected to take, and it tells nobody how much work the step was: a rank that pauses
for ten steps' time once would make the healthy stages of its replica look fast there and slow in
all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from ...tables.arrays import BoolArray, FloatArray
from ...tables.threads import map_in_threads
from .cube import Cube
from .noise import NOISE_FLOOR, noise_of
from .normalise import Line, Slopes, common_mode, item_mean, peer_scores, replica_mean, step_scores
from .settings import DetectionSettings
from .stretches import REACH, shared
from .uncertainty import Comparison, Doubt, comparison_of, doubt_of
from .work import WorkModel

STRAY = 2.0 * REACH
"""Deviations from which on a single step strays: far beyond what noise of healthy steps reaches,
whose means are best left as they are."""
TO_DEVIATION = 1.4826
"""Standard deviation of normal values over their median distance from the median."""


def outlier_factors(means: FloatArray, line: Line) -> FloatArray:
    """Return by what factor single steps [step, lane, replica, place] stray; 1 for the others.

    Args:
        means: Mean durations [step, lane, replica, place, kind]; NaN where absent.
        line: How places follow each other's work.
    """
    excess = means / _median(means)
    if line.tells:
        relative = np.moveaxis(excess, 0, -1)
        model, _ = line.expected(relative - 1.0)
        excess = np.moveaxis(relative / model, -1, 0)
    known = np.isfinite(excess)
    count = np.maximum(known.sum(axis=-1), 1)
    level = np.where(known, excess, 0.0).sum(axis=-1) / count
    level = np.where(known.any(axis=-1), level, np.nan)
    factor = level / _median(level)
    level = factor - 1.0
    spread = TO_DEVIATION * _median(np.abs(level))
    usual = np.nanmedian(spread) if np.isfinite(spread).any() else NOISE_FLOOR
    reach = STRAY * np.maximum(np.fmax(spread, usual), NOISE_FLOOR)
    level = np.where(np.isfinite(level), level, -np.inf)
    is_outlier = level > reach
    # Mostly no rank strays, and nobody has to be asked about its neighbours.
    strays = is_outlier.any(axis=0)
    is_outlier[:, strays] &= shared(level[:, strays]) <= reach[strays]
    return np.where(is_outlier, factor, 1.0)


def _median(values: FloatArray) -> FloatArray:
    """Return the median over the steps; NaN where nothing is known."""
    laid = values.reshape(len(values), -1).T.copy()
    count = np.isfinite(laid).sum(axis=1)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(values) - 1)
    # NaN comes last. Mostly the same steps are known of all.
    laid.partition(np.unique(np.append(low, high)), axis=1)
    rows = np.arange(len(laid))
    return np.asarray((laid[rows, low] + laid[rows, high]) / 2).reshape(values.shape[1:])


CHUNK_CELLS = 1 << 20
"""Durations that are scored at a time, so that memory does not grow with the window."""
SINGLE_CELLS = 1 << 17
"""The same where each kind has one item: then no sum depends on it, and so many stay in the cache."""
KEPT_CELLS = 8 * CHUNK_CELLS
"""A window of at most so many durations is laid out once: 64 MB."""
T = TypeVar("T", bound=np.generic)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Steps(Protocol):
    """Durations of some steps."""

    @property
    def cube(self) -> Cube:
        """Return where the ranks are."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the number of steps, kinds and items."""

    def step(self, position: int) -> FloatArray:
        """Return the durations [lane, replica, place, kind, item] of one step."""

    def step_features(self, position: int) -> FloatArray | None:
        """Return what is known of their work, with one more axis."""


class Scored(msgspec.Struct, frozen=True):
    """Scores of a window [step, rank] with some ranks out of the comparisons."""

    peers: FloatArray
    """Against the replicas; NaN without."""
    own: FloatArray
    """Against the rank's own mean over the window."""
    errors: FloatArray
    """Standard errors of the same, from the scatter within the step."""
    mean: FloatArray
    """Mean durations [lane, replica, place, kind] of the window."""
    trimmed: FloatArray
    """The same with outliers drawn in, which the replicas are compared by."""
    comparison: Comparison
    doubt: Doubt
    referenced: BoolArray
    """Whether another place, or its sequences, shows the work of the rank."""
    unequal_work: FloatArray
    """Excess over the replicas per step that is due to other work, by rank."""


class _Chunk(NamedTuple):
    """Scores of some steps against the own mean, one after the other."""

    shared: FloatArray
    """What the comparable ranks have in common, along the lanes."""
    trimmed: FloatArray
    """Mean durations [step, lane, replica, place, kind] with outliers drawn in."""
    own: FloatArray
    errors: FloatArray
    referenced: BoolArray


class Window:
    """Some steps: what does not depend on who is trusted."""

    def __init__(self, steps: Steps) -> None:
        """Fit the work and the slopes in one pass over the steps."""
        self._steps, self._cube = steps, steps.cube
        self._kept: list[tuple[int, FloatArray]] = []
        self.work, self.is_known = self._fit_work()
        self.slopes = Slopes.empty(self._cube, steps.shape[1])
        means = []
        for _, cells in self._chunks():
            self.slopes.add(cells)
            means.append(_by_step(item_mean(cells), self._cube))
        means_by_step = np.concatenate(means)
        self._recorded_mean = self._mean_as_recorded()
        factors = outlier_factors(means_by_step, self.slopes.line(self._cube.present))
        self._is_outlier = factors > 1.0
        self._means = means_by_step / factors[..., None]

    @property
    def sees_work(self) -> bool:
        """Return whether stages share work."""
        return bool(self.slopes.line(self._cube.present).slope.any())

    def durations(self, position: int) -> FloatArray:
        """Return the durations of a step, at average work where the work is known."""
        step = self._steps.step(position)
        features = self._steps.step_features(position)
        if self.work is None or features is None:
            return step
        return self.work.without_work(step, features)

    def score(self, trusted: BoolArray, settings: DetectionSettings) -> Scored:
        """Return the scores of all ranks against trusted ones."""
        cube = self._cube
        line, mean = self.slopes.line(trusted), mean_over_steps(self._means)

        def against_own(chunk: tuple[int, FloatArray]) -> _Chunk:
            first, cells = chunk
            steps = len(cells) // cube.shape[0]
            informative = self._informative(trusted, first, steps)
            scores = step_scores(cells, _repeated(mean, steps), line, informative)
            common = common_mode(scores, trusted, steps)
            return _Chunk(
                shared=common,
                trimmed=self._means[first : first + steps] * _by_step(scores.trim, cube),
                own=cube.each(_by_step(scores.total - common, cube)),
                errors=cube.each(_by_step(scores.error, cube)),
                referenced=np.asarray(_by_step(scores.referenced, cube).any(axis=0)),
            )

        chunks = tuple(self._mapped(against_own, self._chunks()))
        trimmed = mean_over_steps(np.concatenate([chunk.trimmed for chunk in chunks]))
        expected = replica_mean(trimmed, line, trusted)

        def against_peers(chunk: tuple[tuple[int, FloatArray], FloatArray]) -> FloatArray:
            (first, cells), common = chunk
            steps = len(cells) // cube.shape[0]
            means = _repeated(expected, steps), _repeated(mean, steps)
            scored = peer_scores(cells, *means, line, self._informative(trusted, first, steps))
            return _by_step(scored - common, cube)

        shared = (chunk.shared for chunk in chunks)
        against = np.concatenate(
            list(self._mapped(against_peers, zip(self._chunks(), shared, strict=True)))
        )
        own = np.concatenate([chunk.own for chunk in chunks])
        errors = np.concatenate([chunk.errors for chunk in chunks])
        referenced = np.any([chunk.referenced for chunk in chunks], axis=0)
        by_rank = cube.each(against)
        noise = noise_of(own, errors)
        comparison = comparison_of(cube, trusted, line)
        return Scored(
            unequal_work=cube.floats(self._unequal_work(trusted, against)),
            peers=by_rank,
            own=own,
            errors=errors,
            mean=mean,
            trimmed=trimmed,
            comparison=comparison,
            doubt=doubt_of(noise, mean_over_steps(by_rank), comparison, len(by_rank), settings),
            referenced=cube.by_rank(referenced | self.is_known).astype(bool),
        )

    def _mapped(
        self, function: Callable[[_Item], _Result], chunks: Iterable[_Item]
    ) -> Iterator[_Result]:
        """Yield what a function makes of each chunk; side by side if they are large."""
        kinds, items = self._steps.shape[1:]
        cells = int(np.prod(self._means.shape[:-1])) * kinds * items
        return map_in_threads(function, chunks, side_by_side=cells >= 2 * SINGLE_CELLS)

    def _informative(self, trusted: BoolArray, first: int, steps: int) -> BoolArray:
        """Return which ranks tell the work of some steps, one after the other along the lanes."""
        informative = trusted & ~self._is_outlier[first : first + steps]
        return informative.reshape(-1, *trusted.shape[1:])

    def _chunks(self) -> Iterator[tuple[int, FloatArray]]:
        """Yield some steps at a time, one after the other along the lanes, with their first."""
        if self._kept:
            yield from self._kept
            return
        steps, kinds, items = self._steps.shape
        cells = int(np.prod(self._cube.shape)) * kinds * items
        size = max(1, (CHUNK_CELLS if items > 1 else SINGLE_CELLS) // cells)
        chunks = []
        for first in range(0, steps, size):
            last = min(first + size, steps)
            chunk = first, np.concatenate([self.durations(at) for at in range(first, last)])
            if steps * cells <= KEPT_CELLS:
                chunks.append(chunk)
            yield chunk
        self._kept = chunks

    def _mean_as_recorded(self) -> FloatArray | None:
        """Return the mean durations with the work that each rank had; None if none was divided out."""
        if self.work is None:
            return None
        steps, _, _ = self._steps.shape
        means = (item_mean(self._steps.step(position)) for position in range(steps))
        return mean_over_steps(np.stack(list(means)))

    def _unequal_work(self, trusted: BoolArray, peers: FloatArray) -> FloatArray:
        """Return the excess over the replicas per step less that which the scores explain."""
        recorded = self._recorded_mean
        mean = mean_over_steps(self._means) if recorded is None else recorded
        even, nobody = np.zeros((1, 1, *mean.shape[2:])), np.zeros((1, 1, 1), dtype=bool)
        flat = Line(even, self._cube.block, nobody)
        others = replica_mean(mean, flat, trusted)
        items = np.isfinite(self.durations(0)).sum(axis=-1)
        excess = ((mean - others) * items).sum(axis=-1)
        expected: FloatArray = (others * items).sum(axis=-1)
        return np.asarray(excess - mean_over_steps(peers) * expected)

    def _fit_work(self) -> tuple[WorkModel | None, BoolArray]:
        """Return the fit, and [lane, replica, place] whose work it tells."""
        steps, kinds, _ = self._steps.shape
        model: WorkModel | None = None
        is_known = np.zeros(self._cube.shape, dtype=bool)
        for position in range(steps):
            features = self._steps.step_features(position)
            if features is None:
                continue
            if model is None:
                model = WorkModel.empty(self._cube.shape[2], kinds, features.shape[-1])
            model.add(self._steps.step(position), features)
            is_known |= np.isfinite(features).all(axis=-1).any(axis=-1).any(axis=-1)
        return model, is_known & (model is not None and model.differs)


def _repeated(values: npt.NDArray[T], steps: int) -> npt.NDArray[T]:
    """Return the values of one step [lane, …] for several, one after the other."""
    return np.tile(values, (steps, *(1,) * (values.ndim - 1)))


def _by_step(values: npt.NDArray[T], cube: Cube) -> npt.NDArray[T]:
    """Return values of several steps, one after the other along the lanes, as [step, lane, …]."""
    return values.reshape(-1, *cube.shape, *values.shape[3:])


def mean_over_steps(values: FloatArray) -> FloatArray:
    """Return the mean over the first axis of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, np.nan)

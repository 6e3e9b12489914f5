"""How clocks map to one another: robust fits to two kinds of evidence, joined into sets with one time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...tables.arrays import FloatArray, IntArray

LEAST_ERROR_NS = 4_000.0
"""Bound that more evidence does not improve: members leave a collective in an order of their own."""
MOST_OFFSET_NS = 1 << 62
"""More than any two clocks differ by, time since boot and since 1970 included."""
SOUND = 8
"""Moments whose scatter tells by itself how far they are to be trusted."""
HOST_SCATTER_NS = 2_000_000.0
"""Scatter of fewer moments that hosts saw: a busy one wakes up as late as that."""
DEVICE_SCATTER_NS = 10_000.0
"""The same of moments that devices saw."""
_NORMAL = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""
_OF_MEDIAN = 1.25
"""Standard error of a median in units of that of a mean."""
_DRIFT_BINS = 16
MOST_DRIFT = 1e-3
"""Quartz is within some hundred ppm; what moves faster is no clock."""


class ClockMap(NamedTuple):
    """An affine map from the time of one clock to that of another."""

    time_ns: int
    """Time of the mapped clock at which the offset holds."""
    offset_ns: float
    """Add to a time of the mapped clock."""
    drift: float
    """Growth of the offset, ns per ns; 0 where none was seen."""
    error_ns: float
    """Bound of the offset's error."""

    def then(self, outer: ClockMap) -> ClockMap:
        """Return the map that applies this one first, then ``outer``.

        Their errors add up: they are bounds, and one slow link can push all of them the same way.
        """
        there = self.time_ns + round(self.offset_ns)
        return ClockMap(
            self.time_ns,
            self.offset_ns + outer.offset_ns + outer.drift * (there - outer.time_ns),
            (1.0 + self.drift) * (1.0 + outer.drift) - 1.0,
            self.error_ns + outer.error_ns,
        )

    def inverse(self) -> ClockMap:
        """Return the map in the other direction."""
        there = self.time_ns + round(self.offset_ns)
        return ClockMap(there, -self.offset_ns, 1.0 / (1.0 + self.drift) - 1.0, self.error_ns)


SAME_CLOCK = ClockMap(0, 0.0, 0.0, 0.0)


def moved(times: IntArray, clock: IntArray, maps: Sequence[ClockMap]) -> IntArray:
    """Return times on the other side of the maps; exact integers where there is no drift.

    Args:
        times: Times, each of the clock at the same place in ``clock``.
        clock: Positions in ``maps``.
        maps: One map a clock.
    """
    offset = np.array([_whole(one.offset_ns) for one in maps], dtype=np.int64)
    since = np.array([one.time_ns for one in maps], dtype=np.int64)
    drift = np.array([one.drift for one in maps])
    grown = np.rint(drift[clock] * (times - since[clock])).astype(np.int64)
    return np.asarray(times + offset[clock] + grown, dtype=np.int64)


def _whole(offset_ns: float) -> int:
    """Return an offset as an integer that fits a column, whatever a damaged time makes of it."""
    return max(-MOST_OFFSET_NS, min(MOST_OFFSET_NS, round(offset_ns)))


def fit_common_ends(time_ns: IntArray, ahead_ns: IntArray, *, host: bool) -> ClockMap:
    """Return the map from how far another clock was ahead at moments that both saw.

    The offset is the median, so that a few wrong moments do not move it. Its bound
    is the least error, one scatter (what a habit of leaving late may hide), and
    1.25 scatters / sqrt(n), the standard error of a median.

    Args:
        time_ns: The moments on the mapped clock.
        ahead_ns: Time of the other clock less that of the mapped one.
        host: Whether a host saw one of the ends, not a device.
    """
    since, base = int(np.median(time_ns - time_ns[0])) + int(time_ns[0]), int(ahead_ns[0])
    elapsed, ahead = (time_ns - since).astype(float), (ahead_ns - base).astype(float)
    drift = _drift(elapsed, ahead)
    level = ahead - drift * elapsed
    scatter = _scatter(level)
    if len(level) < SOUND:
        scatter = max(scatter, HOST_SCATTER_NS if host else DEVICE_SCATTER_NS)
    unsure = _OF_MEDIAN * max(scatter, LEAST_ERROR_NS) / np.sqrt(len(level))
    error = LEAST_ERROR_NS + scatter + float(unsure)
    return ClockMap(since, base + float(np.median(level)), drift, error)


def fit_bounds(
    time_ns: IntArray,
    least_ns: FloatArray,
    most_ns: FloatArray,
    *,
    firm: int = 0,
    wire_ns: float = 0.0,
) -> ClockMap | None:
    """Return the map from bounds of how far another clock was ahead; None without both bounds.

    All bounds hold together, so the offset lies between the greatest lower and the
    least upper one: the middle, plus or minus half their distance. Where they
    contradict each other even without the drift, half of that is the error.

    Args:
        time_ns: Moments on the mapped clock.
        least_ns: Lower bounds there; NaN where unknown.
        most_ns: Upper bounds there; NaN where unknown.
        firm: Which bound is reached, but for the wire: 1 the lower one, -1 the upper one, 0 neither
            is known to be. The offset is then there, at most in the middle.
        wire_ns: How far from that bound.
    """
    if np.isnan(least_ns).all() or np.isnan(most_ns).all():
        return None
    since, drift, low, high = _span(time_ns, least_ns, most_ns)
    half = (high - low) / 2
    shift = firm * max(0.0, half - wire_ns)
    # A wire that is slower that way than it was the other way reaches its bound no nearer.
    return ClockMap(since, (low + high) / 2 - shift, drift, abs(half) + abs(shift) + LEAST_ERROR_NS)


def contradict(time_ns: IntArray, least_ns: FloatArray, most_ns: FloatArray) -> bool:
    """Tell whether bounds contradict each other even without the drift; of one side they cannot.

    Args:
        time_ns: As ``fit_bounds`` takes them.
        least_ns: Lower bounds.
        most_ns: Upper bounds.
    """
    if np.isnan(least_ns).all() or np.isnan(most_ns).all():
        return False
    _, _, low, high = _span(time_ns, least_ns, most_ns)
    return low > high


def _span(
    time_ns: IntArray, least_ns: FloatArray, most_ns: FloatArray
) -> tuple[int, float, float, float]:
    """Return where the clock is mapped, its drift, and the greatest lower and least upper bound."""
    since = int(np.median(time_ns - time_ns[0])) + int(time_ns[0])
    elapsed = (time_ns - since).astype(float)
    both = ~np.isnan(least_ns) & ~np.isnan(most_ns)
    drift = _drift(elapsed[both], ((least_ns + most_ns) / 2)[both])
    low = float(np.nanmax(least_ns - drift * elapsed))
    high = float(np.nanmin(most_ns - drift * elapsed))
    return since, drift, low, high


def _drift(elapsed: FloatArray, ahead: FloatArray) -> float:
    """Return the slope (Theil-Sen over medians of bins), 0 where it is not beyond doubt.

    Over the capture it must move the offset by more than twice the least error and the
    scatter around it, or four standard errors of a slope, whichever is more.
    """
    if len(elapsed) < SOUND:
        return 0.0
    order = np.argsort(elapsed, kind="stable")
    bins = np.array_split(order, min(_DRIFT_BINS, len(order) // 2))
    at = np.array([np.median(elapsed[rows]) for rows in bins])
    level = np.array([np.median(ahead[rows]) for rows in bins])
    first, second = np.triu_indices(len(at), k=1)
    apart = at[second] - at[first]
    if not (apart > 0).any():
        return 0.0
    slope = float(np.median(((level[second] - level[first])[apart > 0]) / apart[apart > 0]))
    # Over its whole span, the standard error of a slope is scatter * sqrt(12 / n).
    scatters = max(1.0, 4.0 * math.sqrt(12.0 / len(elapsed)))
    doubt = 2 * LEAST_ERROR_NS + scatters * _scatter(ahead - slope * elapsed)
    is_seen = abs(slope) * float(np.ptp(elapsed)) > doubt and abs(slope) < MOST_DRIFT
    return slope if is_seen else 0.0


def _scatter(values: FloatArray) -> float:
    return _NORMAL * float(np.median(np.abs(values - np.median(values))))


class Comparison(NamedTuple):
    """How two clocks compare."""

    first: int
    clock: int
    to_first: ClockMap
    """Moves times of ``clock`` to those of ``first``."""
    seen_ns: float | None = None
    """Its error as far as what was seen tells, where it may be larger: that chooses among comparisons."""

    @property
    def doubt_ns(self) -> float:
        """What comparisons are chosen by."""
        return self.to_first.error_ns if self.seen_ns is None else self.seen_ns


class ClockForest:
    """The most certain comparisons that connect the clocks, one tree a connected set.

    A tree needs no weighing of contradicting paths; what the comparisons that were
    left out would contradict shows as skew when the aligned capture is checked.
    """

    def __init__(self, count: int) -> None:
        """Begin with ``count`` clocks that nothing connects."""
        self._neighbours: list[list[tuple[int, ClockMap]]] = [[] for _ in range(count)]
        self._set = list(range(count))

    def connect(self, comparisons: Iterable[Comparison]) -> None:
        """Add the comparisons that connect two sets, those with the least doubt first."""
        for first, clock, to_first, _ in sorted(comparisons, key=lambda one: one.doubt_ns):
            one, other = self._find(first), self._find(clock)
            if one == other:
                continue
            self._set[max(one, other)] = min(one, other)
            self._neighbours[first].append((clock, to_first))
            self._neighbours[clock].append((first, to_first.inverse()))

    def roots(self) -> IntArray:
        """Return the first clock of the set of each clock."""
        return np.array([self._find(clock) for clock in range(len(self._set))], dtype=np.int64)

    def maps_to(self, root: int) -> dict[int, ClockMap]:
        """Return the map of each clock of the root's set to the root."""
        found, ahead = {root: SAME_CLOCK}, [root]
        while ahead:
            here = ahead.pop()
            for clock, to_here in self._neighbours[here]:
                if clock not in found:
                    found[clock] = to_here.then(found[here])
                    ahead.append(clock)
        return found

    def _find(self, clock: int) -> int:
        while self._set[clock] != clock:
            self._set[clock] = self._set[self._set[clock]]
            clock = self._set[clock]
        return clock


def to_middles(forest: ClockForest, weights: FloatArray) -> tuple[list[ClockMap], IntArray]:
    """Return the map of each clock to the middle clock of its set, and which clock that is.

    The middle clock has the median offset, so that few clocks need a correction.

    Args:
        forest: The sets.
        weights: How many ranks each clock stands for.
    """
    roots = forest.roots()
    maps = [SAME_CLOCK] * len(roots)
    middles = roots.copy()
    for root in np.unique(roots).tolist():
        middle = _middle_clock(forest.maps_to(root), weights)
        for clock, one in forest.maps_to(middle).items():
            maps[clock], middles[clock] = one, middle
    return maps, middles


def _middle_clock(maps: Mapping[int, ClockMap], weights: FloatArray) -> int:
    """Return the clock with the median offset; of two in the middle the first."""
    clocks = sorted(maps, key=lambda clock: (maps[clock].offset_ns, clock))
    passed = np.cumsum([weights[clock] for clock in clocks])
    lower, upper = (np.searchsorted(passed, passed[-1] / 2, side) for side in ("left", "right"))
    return min(clocks[int(lower) : int(upper) + 1])

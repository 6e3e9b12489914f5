"""Clocks that were compared in pairs, put together into sets with one time each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ...tables.arrays import FloatArray, IntArray
from .fit import SAME_CLOCK, ClockMap


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

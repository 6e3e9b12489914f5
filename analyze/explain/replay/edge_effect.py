"""What a cause adds to the edges of a program, kept only where it adds anything.

A slow rank or link touches a few edges of millions, and there are up to ten causes: as one
value for every edge they would be the largest arrays of an analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...tables.arrays import FloatArray, IntArray


class EdgeEffect(NamedTuple):
    """Edges that a cause makes longer or shorter, and by how much."""

    edge: IntArray
    """Position in the order of the program, rising."""
    ns: FloatArray
    """Not 0."""

    def add_to(self, weight_ns: FloatArray) -> None:
        """Add the effect to the weights of all edges of the program, in place."""
        weight_ns[self.edge] += self.ns

    def part(self, first: int, count: int) -> EdgeEffect:
        """Return the effect on a run of edges, numbered from its first."""
        low, high = np.searchsorted(self.edge, (first, first + count))
        return EdgeEffect(self.edge[low:high] - first, self.ns[low:high])

    @property
    def is_nothing(self) -> bool:
        """Return whether no edge is touched."""
        return not len(self.edge)


def edge_effect(values: npt.ArrayLike, first: int = 0) -> EdgeEffect:
    """Return the effect that has some values on a run of edges, and none on the others.

    Args:
        values: ns, one an edge.
        first: The edge of the first value.
    """
    dense = np.asarray(values, dtype=np.float64)
    touched = np.flatnonzero(dense)
    return EdgeEffect((touched + first).astype(np.int32), dense[touched])


def as_effects(effects: FloatArray | Sequence[EdgeEffect]) -> Sequence[EdgeEffect]:
    """Return one effect a cause, also of a matrix ``(edges, causes)``."""
    if isinstance(effects, np.ndarray):
        return [edge_effect(column) for column in effects.T]
    return effects

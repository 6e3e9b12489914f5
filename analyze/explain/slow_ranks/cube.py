"""Where each rank stands: the cube in which ranks are compared with each other.

Durations of a step are laid out as ``[lane, replica, place, kind, item]``:

* **place**: what shares the work of a microbatch, the pipeline stages and tensor-parallel
  ranks of one replica. The places of one stage follow each other and form a *block*:
  ranks that wait for each other inside a layer are not asked about each other's work,
  unless there is one stage only;
* **replica**: the data-parallel copies of a place, each with microbatches of its own;
* **lane**: what has nothing to be compared with (context-parallel slices).

A rank is thus compared along two axes: with other places for the same work, and
with other replicas for the same part of the model.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.layout import ParallelLayout

from ...tables.arrays import BoolArray, FloatArray

IntArray = npt.NDArray[np.int64]


class Cube(msgspec.Struct, frozen=True):
    """The position of every rank; cells of ranks that are not there stay NaN."""

    ranks: tuple[int, ...]
    lane: IntArray
    replica: IntArray
    place: IntArray
    shape: tuple[int, int, int]
    """Lanes, replicas, places."""
    block: int = 1
    """Places of one stage."""

    def fill(self, by_rank: npt.ArrayLike) -> FloatArray:
        """Return values by rank (first axis) at their places in the cube."""
        values = np.asarray(by_rank, dtype=np.float64)
        cube = np.full((*self.shape, *values.shape[1:]), np.nan)
        cube[self.lane, self.replica, self.place] = values
        return cube

    def by_rank(self, cube: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return the values of a cube in the order of the ranks."""
        return cube[self.lane, self.replica, self.place]

    def floats(self, cube: FloatArray) -> FloatArray:
        """Return the values of a cube of floats in the order of the ranks."""
        return cube[self.lane, self.replica, self.place]

    def each(self, cubes: FloatArray) -> FloatArray:
        """Return the values of several cubes [cube, lane, …] in the order of the ranks."""
        return cubes[:, self.lane, self.replica, self.place]

    @property
    def cells(self) -> int:
        """Return how many cells there are, those without a rank included."""
        return int(np.prod(self.shape))

    @property
    def present(self) -> BoolArray:
        """Return which cells hold a rank."""
        cells = np.zeros(self.shape, dtype=bool)
        cells[self.lane, self.replica, self.place] = True
        return cells


def cube_of(ranks: tuple[int, ...], layout: ParallelLayout | None) -> Cube:
    """Return the cube of some ranks of a job; without a layout all count as replicas of one place."""
    count = len(ranks)
    if layout is None:
        zeros = np.zeros(count, dtype=np.int64)
        return Cube(ranks, zeros, np.arange(count, dtype=np.int64), zeros, (1, count, 1))
    axis = coordinates_of(layout, np.array(ranks, dtype=np.int64))
    # Where no rank is would be empty cells, of which each step has one. Some captures hold one rank of each TP group.
    held = {name: np.unique(axis[name], return_inverse=True) for name in ("cp", "dp", "pp", "tp")}
    lanes, replicas, stages, siblings = (len(places) for places, _ in held.values())
    (_, lane), (_, replica), (_, stage), (_, sibling) = held.values()
    return Cube(
        ranks=ranks,
        lane=lane,
        replica=replica,
        place=stage * siblings + sibling,
        shape=(lanes, replicas, stages * siblings),
        block=siblings if layout.pp > 1 else 1,
    )


def coordinates_of(layout: ParallelLayout, ranks: IntArray) -> dict[str, IntArray]:
    """Return the positions of ranks on each mesh axis.

    Raises:
        ConfigError: A rank is outside the mesh.
    """
    for rank in (ranks.min(), ranks.max()) if len(ranks) else ():
        layout.coordinates(int(rank))
    found: dict[str, IntArray] = {}
    for axis in reversed(layout.order.split("-")):
        ranks, found[axis] = np.divmod(ranks, getattr(layout, axis))
    return found

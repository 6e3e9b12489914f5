"""The split of layers that makes the busiest stage least busy: over stages, or over chunks of interleaved ranks.

With equal messages a step of 1F1B takes ``(m - 1) max_s(f_s + b_s) + sum_s(f_s + b_s)``, and the sum
does not depend on the split: the least largest stage is the shortest step. The dynamic programme
has the stage in its state, since what a stage may hold depends on its microbatches in flight::

    best[s][j] = min over i of max(best[s - 1][i], load of layers i..j on stage s)

with an infinite load where the layers do not fit into the memory of the stage. O(L^2 p), vectorised
over both ends of a stage.

The load of a rank is the sum over its chunks, which are no contiguous layers. With alike layers of
``t`` ns the numbers of layers n of chunks c on ranks r solve ::

    minimise z   such that   t sum_c n[r, c] + extra[r] <= z,   sum n = L,   a[r] sum_c n[r, c] <= spare[r]

by ``scipy.optimize.milp`` (HiGHS), which proves the optimum. Many splits have the same busiest rank: among
them those with the smallest chunks, which fill and drain fastest, and those that move fewest layers are
taken, by a second programme that keeps z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...tables.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoads:
    """What layers cost, and what stages cost and hold beside them; times in ns, sizes in bytes."""

    layer_ns: FloatArray
    """Of each layer in model order."""
    extra_ns: FloatArray
    """Of each stage: embedding, head."""
    layer_bytes: FloatArray | None = None
    """``(stage, layer)``: a layer on a stage, with its microbatches in flight; None: no cap."""
    extra_bytes: FloatArray | None = None
    """Of each stage."""
    cap_bytes: float = float("inf")

    def of_split(self, split: Sequence[int]) -> FloatArray:
        """Return the load of every stage with so many layers each."""
        ends = np.cumsum([0, *split])
        total = np.append(0.0, np.cumsum(self.layer_ns))
        return np.asarray(total[ends[1:]] - total[ends[:-1]] + self.extra_ns)

    def held_by(self, split: Sequence[int]) -> FloatArray | None:
        """Return the bytes on every stage with so many layers each; None where unknown."""
        if self.layer_bytes is None or self.extra_bytes is None:
            return None
        ends = np.cumsum([0, *split])
        total = np.pad(self.layer_bytes.cumsum(axis=1), ((0, 0), (1, 0)))
        rows = np.arange(len(split))
        return np.asarray(total[rows, ends[1:]] - total[rows, ends[:-1]] + self.extra_bytes)


def least_busy_split(
    loads: StageLoads, now: Sequence[int], bound_ns: float = float("inf")
) -> tuple[int, ...] | None:
    """Return the split whose busiest stage is least busy; None where nothing fits into memory.

    Of splits below ``bound_ns`` the one that moves fewest layers is returned instead, if a bound is
    given: stages near measured ones are priced best. Stages between the ends have a layer at least;
    the ends may have none.

    Args:
        loads: Costs and sizes.
        now: Present layers of the stages.
        bound_ns: Load that no stage may exceed; infinite: the least there is.
    """
    if not np.isfinite(bound_ns):
        best, come_from = _programme(loads, _load_costs(loads, None), together=np.maximum)
        return _walked(come_from) if np.isfinite(best) else None
    costs = _load_costs(loads, bound_ns)
    layers, stages = len(loads.layer_ns), len(loads.extra_ns)
    count = np.arange(layers + 1)[None, :] - np.arange(layers + 1)[:, None]
    moved = [
        np.where(np.isfinite(costs[stage]), np.abs(count - now[stage]), np.inf)
        for stage in range(stages)
    ]
    best, come_from = _programme(loads, moved, together=np.add)
    return _walked(come_from) if np.isfinite(best) else None


def _load_costs(loads: StageLoads, bound_ns: float | None) -> list[FloatArray]:
    """Return the load of layers i to j on each stage, ``(i, j)``; infinite where not allowed."""
    layers, stages = len(loads.layer_ns), len(loads.extra_ns)
    total = np.append(0.0, np.cumsum(loads.layer_ns))
    span = total[None, :] - total[:, None]
    count = np.arange(layers + 1)[None, :] - np.arange(layers + 1)[:, None]
    found = []
    for stage in range(stages):
        cost = span + loads.extra_ns[stage]
        least = 0 if stage in (0, stages - 1) else 1
        allowed = count >= least
        if loads.layer_bytes is not None and loads.extra_bytes is not None:
            held = np.append(0.0, np.cumsum(loads.layer_bytes[stage]))
            size = held[None, :] - held[:, None] + loads.extra_bytes[stage]
            allowed &= size <= loads.cap_bytes
        if bound_ns is not None:
            allowed &= cost <= bound_ns
        found.append(np.where(allowed, cost, np.inf))
    return found


def _programme(
    loads: StageLoads, costs: list[FloatArray], together: np.ufunc
) -> tuple[float, list[IntArray]]:
    """Return the least combined cost of all layers on all stages, and where each state comes from."""
    layers = len(loads.layer_ns)
    best = np.full(layers + 1, np.inf)
    best[0] = 0.0 if together is np.add else -np.inf
    come_from = []
    for cost in costs:
        reached = together(best[:, None], cost)
        come_from.append(np.asarray(reached.argmin(axis=0), np.int64))
        best = reached.min(axis=0)
    return float(best[layers]), come_from


def _walked(come_from: list[IntArray]) -> tuple[int, ...]:
    """Return the split, read backwards from the last layer."""
    end = len(come_from[0]) - 1
    split = []
    for stage in reversed(come_from):
        begin = int(stage[end])
        split.append(end - begin)
        end = begin
    return tuple(reversed(split))


_SECONDS = 0.25
"""A second programme returns its best within them; the optimum of the first is what is proven."""
_SLACKS = (0.0, 0.01, 0.03, 0.06, 0.12)
"""How much busier the busiest rank of a candidate may be."""
_WEIGHTS = ((1.0, 0.01), (0.01, 1.0))
"""Of the largest chunk, and of layers that move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCosts:
    """What chunks cost and ranks hold; times in ns, sizes in bytes."""

    layer_ns: float
    """Of one layer, all passes."""
    extra_ns: FloatArray
    """Of each chunk beside its layers, in model order."""
    holders: IntArray
    """The rank of each chunk."""
    layer_bytes: FloatArray | None = None
    """Of a layer on each rank; None: no cap."""
    spare_bytes: FloatArray | None = None
    """What each rank has for layers."""

    def most_layers(self, layers: int) -> FloatArray:
        """Return how many layers each rank can hold."""
        most = np.full(int(self.holders.max()) + 1, float(layers))
        if self.layer_bytes is None or self.spare_bytes is None:
            return most
        fit = np.floor(self.spare_bytes / np.maximum(self.layer_bytes, 1.0))
        return np.asarray(np.minimum(most, fit))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSplits:
    """Splits in model order, and how good the best is proven to be."""

    candidates: tuple[tuple[int, ...], ...]
    largest_ns: float
    """Load of the busiest rank of the best."""
    bound_ns: float
    """No split has less."""


def least_busy_chunks(costs: ChunkCosts, now: Sequence[int]) -> ChunkSplits | None:
    """Return splits whose busiest rank is least busy, or nearly; None where nothing fits.

    Args:
        costs: Costs and sizes.
        now: Present layers of the chunks in model order.
    """
    layers = sum(now)
    most = costs.most_layers(layers)
    if (most < 0).any() or most.sum() < layers:
        return None
    ranks = np.arange(len(most))[:, None] == costs.holders[None, :]
    first = _least_busy_rank(costs, layers, most, ranks @ costs.extra_ns)
    if first is None:
        return None
    largest, bound = first
    found = [
        split
        for slack in _SLACKS
        for weights in _WEIGHTS
        if (split := _spread(costs, now, most, ranks, largest * (1.0 + slack), weights))
    ]
    return ChunkSplits(
        candidates=tuple(dict.fromkeys(found)), largest_ns=largest, bound_ns=min(largest, bound)
    )


def _least_busy_rank(
    costs: ChunkCosts, layers: int, most: FloatArray, extra_ns: FloatArray
) -> tuple[float, float] | None:
    """Return the least load of the busiest rank, and the bound that proves it."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    ranks = len(most)
    rows = np.hstack([np.eye(ranks), np.full((ranks, 1), -1.0)])
    found = milp(
        c=np.append(np.zeros(ranks), 1.0),
        integrality=np.append(np.ones(ranks), 0),
        bounds=Bounds(np.zeros(ranks + 1), np.append(most, np.inf)),
        constraints=[
            LinearConstraint(rows, -np.inf, -extra_ns / costs.layer_ns),
            LinearConstraint(np.append(np.ones(ranks), 0.0)[None, :], layers, layers),
        ],
    )
    if found.x is None:
        return None
    counts = np.rint(found.x[:ranks])
    largest = float((counts * costs.layer_ns + extra_ns).max())
    return largest, float(found.mip_dual_bound or 0.0) * costs.layer_ns


def _spread(
    costs: ChunkCosts,
    now: Sequence[int],
    most: FloatArray,
    ranks: np.ndarray,
    largest_ns: float,
    weights: tuple[float, float],
) -> tuple[int, ...] | None:
    """Return the layers of every chunk, with no rank busier than a bound.

    The variables are layers n and moves d of every chunk, and the largest chunk w.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    chunks, present = len(now), np.array(now, np.float64)
    eye, none = np.eye(chunks), np.zeros((chunks, chunks))
    column, nothing = np.ones((chunks, 1)), np.zeros((chunks, 1))
    extra = costs.extra_ns / costs.layer_ns
    by_rank = np.hstack([ranks, np.zeros((len(most), chunks + 1))])
    room = largest_ns / costs.layer_ns * (1.0 + 1e-9) - ranks @ extra
    found = milp(
        c=np.concatenate([np.zeros(chunks), np.full(chunks, weights[1]), [weights[0]]]),
        integrality=np.concatenate([np.ones(chunks), np.zeros(chunks + 1)]),
        bounds=Bounds(np.zeros(2 * chunks + 1), np.inf),
        constraints=[
            LinearConstraint(np.hstack([eye, -eye, nothing]), -np.inf, present),
            LinearConstraint(np.hstack([-eye, -eye, nothing]), -np.inf, -present),
            LinearConstraint(np.hstack([eye, none, -column]), -np.inf, 0.0),
            LinearConstraint(by_rank, -np.inf, np.minimum(most, room)),
            LinearConstraint(
                np.append(np.ones(chunks), np.zeros(chunks + 1))[None, :], sum(now), sum(now)
            ),
        ],
        options={"time_limit": _SECONDS},
    )
    if found.x is None:
        return None
    counts = np.rint(found.x[:chunks]).astype(np.int64)
    return tuple(counts.tolist()) if counts.sum() == sum(now) else None

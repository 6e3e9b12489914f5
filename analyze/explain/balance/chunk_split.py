"""The split of layers over chunks of interleaved ranks: an integer programme with its certificate.

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

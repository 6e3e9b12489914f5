"""The split of layers over stages that makes the busiest stage least busy: exact, by stages.

With equal messages a step of 1F1B takes ``(m - 1) max_s(f_s + b_s) + sum_s(f_s + b_s)``, and the sum
does not depend on the split: the least largest stage is the shortest step. The dynamic programme
has the stage in its state, since what a stage may hold depends on its microbatches in flight::

    best[s][j] = min over i of max(best[s - 1][i], load of layers i..j on stage s)

with an infinite load where the layers do not fit into the memory of the stage. O(L^2 p), vectorised
over both ends of a stage.
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

"""What a slow rank costs, from summaries alone.

Repairing a rank returns no more than what its own work takes too long, because a step is a longest
path on which this work lies at most once. In a pipeline it returns less: a rank that waits for its
neighbours at the begin and the end of a step has time to spare there. So the schedule of the run is
replayed with the mean pass of every rank in every step, with the slow rank as it was and as its peers
are. Ranks of one stage go on together, so that a pass takes the mean
own work of its ranks and what they wait for each other inside: without the slow one, as long as healthy
replicas of the stage do. Messages between stages take no time in this replay: they are the same on both
sides.

A step ends with its slowest replica, and chance makes one of many slow in every step. The mean of a pass does not show that:
replay less replay would promise an eighth too much of 64 replicas. What replicas wait at their gradients does: it says when
each was done. So a repaired step ends with the last of the others, or with the replay of the repaired replica, stretched as those
of healthy replicas are. Where there is one replica, steps in which the rank is healthy say how to stretch it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis, ScheduleKind

from ..formulas.schedules import ScheduleGraph, make_plan, schedule_graph
from ..tables.arrays import BoolArray, FloatArray, IntArray
from .dense import Dense
from .outline import Outline
from .summary import OWN_WORK

_INSIDE = f"exposed_{Axis.TP.value}_s"
"""What ranks of one stage wait for each other inside their passes, and these transfers."""
_ALONG_DP = f"exposed_{Axis.DP.value}_s"
"""What replicas wait for each other, and these transfers."""
MOST_STEPS = 64
"""Slow steps that are replayed, spread evenly, and others; the mean of so many is sure enough."""
LEAST_OTHERS = 8
"""Other steps that tell how much longer than its replay a healthy step takes."""


class Slowdown(NamedTuple):
    """A slow rank: by which share, and in which steps (of those of the summaries)."""

    rank: int
    share: float
    slow: BoolArray


class Price(NamedTuple):
    """Time per step, as a mean over all steps, ns."""

    return_ns: float | None
    """What repairing the rank returns; None where it cannot be replayed."""
    most_ns: float
    """What its own work takes too long: it returns no more."""
    unknown: str | None
    """Why it cannot be replayed."""


def price_of(
    table: Dense, outline: Outline, found: Slowdown, suspects: Sequence[int] = ()
) -> Price:
    """Return the price of one slow rank.

    Args:
        table: The summaries.
        outline: Mesh and schedule.
        found: The rank.
        suspects: All ranks that were found slow; the others are its healthy peers.
    """
    at = int(np.searchsorted(table.ranks, found.rank))
    excess = found.share / (1.0 + found.share)
    most = float((table.own_s()[found.slow, at] * excess).sum() * 1e9 / len(table.steps))
    replayed, why = _schedule(outline, table)
    if replayed is None:
        return Price(None, most, why)
    healthy = ~np.isin(table.ranks, suspects)
    slow = np.flatnonzero(found.slow)
    returns = _returns_ns(replayed, table, found, at, healthy)
    mean = float(np.mean(returns)) * len(slow) / len(table.steps)
    return Price(min(max(mean, 0.0), most), most, None)


def _returns_ns(
    replayed: _Replay, table: Dense, found: Slowdown, at: int, healthy: BoolArray
) -> FloatArray:
    """Return how much shorter slow steps would be with the rank repaired, ns.

    Healthy replicas of a step show when it would have ended; else healthy steps how to stretch the replay of the
    repaired one. Without both, replay less replay.
    """
    chosen, others = _spread(found.slow), _spread(~found.slow)
    length = table.by_step("wall_s").mean(axis=1) * 1e9
    spans = [replayed.repaired_ns(step, at, found.share, healthy) for step in chosen]
    if replayed.shows_replicas(healthy):
        saved = [
            replayed.saved_ns(step, float(length[step]), at, span, healthy)
            for step, span in zip(chosen, spans, strict=True)
        ]
        return np.array(saved)
    repaired = np.array([span.max() for span in spans])
    if len(others) < LEAST_OTHERS:
        return np.asarray([replayed.spans_ns(step).max() for step in chosen] - repaired)
    longer = np.median([length[step] / replayed.spans_ns(step).max() for step in others])
    return np.asarray(length[chosen] - longer * repaired)


def _spread(wanted: BoolArray) -> list[int]:
    """Return the positions of some of the wanted steps, spread evenly."""
    found = np.flatnonzero(wanted)
    places = np.linspace(0, len(found) - 1, min(len(found), MOST_STEPS)).round().astype(int)
    positions: list[int] = found[places].tolist()
    return positions


def _schedule(outline: Outline, table: Dense) -> tuple[_Replay | None, str | None]:
    """Return what replays a step, or None and the reason."""
    layout, schedule, microbatches = outline
    if layout is None:
        return None, "the mesh is not known"
    if len(table.ranks) != layout.world_size:
        return None, "some ranks have no summary"
    kind = ScheduleKind.NONE.value if layout.pp == 1 else schedule
    if kind is None or microbatches is None:
        return None, "the schedule or the number of microbatches is not known"
    try:
        plan = make_plan(ScheduleKind(kind), layout.pp, microbatches, layout.vpp)
    except (ConfigError, ValueError) as error:
        return None, str(error)
    return _Replay(table, layout, schedule_graph(plan)), None


class _Replay:
    """Replays single steps of a run with the mean pass of each stage of each replica."""

    def __init__(self, table: Dense, layout: ParallelLayout, graph: ScheduleGraph) -> None:
        self._graph = graph
        at = [layout.coordinates(int(rank)) for rank in table.ranks]
        self._cell: tuple[IntArray, ...] = tuple(
            np.array([place[axis] for place in at]) for axis in ("pp", "dp")
        )
        self._shape = (layout.pp, layout.dp)
        passes = np.stack([table.by_step(name) for name in OWN_WORK])
        self._rest = np.maximum(table.own_s() - passes.sum(axis=0), 0.0)
        self._own = self._means(passes)
        # The ranks of a stage go on together: what one works less than the slowest it waits inside.
        inside = self._means(table.by_step(_INSIDE))
        own = self._own.sum(axis=0)
        self._stretch = 1.0 + np.divide(inside, own, out=np.zeros_like(own), where=own > 0)
        self._passes = passes
        # All wait for the last replica; what it needs itself is the transfer.
        self._waits = self._means(table.by_step(_ALONG_DP))

    def shows_replicas(self, healthy: BoolArray) -> bool:
        """Return whether waiting along dp shows when healthy replicas were done."""
        return bool(self._waits.any() and (~self._is_sick(healthy).any(axis=0)).any())

    def spans_ns(self, step: int) -> FloatArray:
        """Return how long each stage of each replica worked on a step [stage, replica], ns."""
        return self._spans(self._own[:, step] * self._stretch[step], self._rest[step])

    def repaired_ns(self, step: int, at: int, share: float, healthy: BoolArray) -> FloatArray:
        """Return the same with the work of one rank as its peers have it, ns.

        Args:
            step: Position of the step.
            at: Position of the rank.
            share: By which its own work is longer.
            healthy: Ranks that were not found slow.
        """
        stage, replica = (int(axis[at]) for axis in self._cell)
        own = self._passes[:, step].copy()
        rest = self._rest[step].copy()
        own[:, at] /= 1.0 + share
        rest[at] /= 1.0 + share
        cells = self._own[:, step] * self._stretch[step]
        mates = (self._cell[0] == stage) & (self._cell[1] == replica)
        cells[:, stage, replica] = own[:, mates].mean(axis=1) * self._usual_stretch(stage, healthy)
        return self._spans(cells, rest)

    def saved_ns(
        self, step: int, length_ns: float, at: int, repaired_ns: FloatArray, healthy: BoolArray
    ) -> float:
        """Return how much shorter a step would be with a rank repaired, by when other replicas were done, ns.

        Args:
            step: Position of the step.
            length_ns: How long it was.
            at: Position of the rank.
            repaired_ns: What ``repaired_ns`` returns.
            healthy: Ranks that were not found slow.
        """
        replayed = self.spans_ns(step)
        # A stage may begin the next step as soon as it has its gradients: the longest has no time to spare.
        longest = int(replayed.max(axis=1).argmax())
        waited = self._waits[step, longest] * 1e9
        done = length_ns - (waited - waited.min())
        well = ~self._is_sick(healthy).any(axis=0)
        longer = done[well] / replayed[:, well].max(axis=0)
        own = int(self._cell[1][at])
        rest = np.delete(done, own).max(initial=0.0)
        return length_ns - float(np.maximum(rest, longer * repaired_ns[:, own].max()).mean())

    def _usual_stretch(self, stage: int, healthy: BoolArray) -> float:
        """Return how much longer than its mean work a pass of a stage is where no rank is slow.

        More than 1 also there: each pass waits for the slowest rank of its stage, which changes.
        """
        cells = self._stretch[:, stage, ~self._is_sick(healthy)[stage]]
        return float(cells.mean()) if cells.size else 1.0

    def _is_sick(self, healthy: BoolArray) -> BoolArray:
        """Return which stages of which replicas have a rank that was found slow."""
        is_sick = np.zeros(self._shape, dtype=bool)
        is_sick[tuple(axis[~healthy] for axis in self._cell)] = True
        return is_sick

    def _spans(self, cells_s: FloatArray, rest_s: FloatArray) -> FloatArray:
        plan = self._graph.plan
        count = np.zeros((len(OWN_WORK), self._shape[0]))
        np.add.at(count, (plan.kind, plan.rank), 1.0)
        each = cells_s / np.maximum(count, 1.0)[:, :, None]
        tail = np.zeros(self._shape)
        np.maximum.at(tail, self._cell, rest_s)
        passes, tails = ((time * 1e9).round().astype(np.int64) for time in (each, tail))
        times = self._graph.times(passes[plan.kind, plan.rank], tail_ns=tails)
        return np.asarray(times.finish_ns - times.start_ns[plan.is_first], dtype=np.float64)

    def _means(self, by_rank: FloatArray) -> FloatArray:
        """Return the means [..., stage, replica] of values [..., rank]."""
        total = np.zeros((*by_rank.shape[:-1], *self._shape))
        members = np.zeros(self._shape)
        np.add.at(total, cast("Any", (..., *self._cell)), by_rank)
        np.add.at(members, self._cell, 1.0)
        return np.asarray(total / members)

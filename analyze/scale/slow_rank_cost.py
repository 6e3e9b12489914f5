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

from ..explain.slow_ranks.cube import coordinates_of
from ..formulas.schedules import ScheduleGraph, make_plan, schedule_graph
from ..formulas.schedules.schedule_records import OVERLAPPING
from ..tables.arrays import BoolArray, FloatArray, IntArray
from ..wording.message import Message, message
from .dense import Dense
from .outline import Outline
from .summary import OWN_WORK
from .survey import ALONG_DP, Survey

_INSIDE = f"exposed_{Axis.TP.value}_s"
"""What ranks of one stage wait for each other inside their passes, and these transfers."""
MOST_STEPS = 64
"""Slow steps that are replayed, spread evenly, and others; the mean of so many is sure enough."""
MOST_CELLS = 1 << 19
"""Passes that are replayed at a time, of all replicas and steps: 4 MB."""
LEAST_OTHERS = 8
"""Other steps that tell how much longer than its replay a healthy step takes."""


class Slowdown(NamedTuple):
    """A slow rank: by which share, and in which steps (of those of the summaries)."""

    rank: int
    share: float
    slow: BoolArray


class Whole(NamedTuple):
    """What holds for all ranks of a run, where the table has some of its replicas; by the steps of the table."""

    ranks: int
    longest_s: FloatArray
    """Longest length of each step of any rank."""
    mean_s: FloatArray
    """Mean length of each step over the ranks."""
    least_wait_s: FloatArray
    """What the stage of the last replica that is not in the table waited for the others [step, stage]."""

    @classmethod
    def of(cls, survey: Survey, chosen: BoolArray, layout: ParallelLayout | None) -> Whole:
        """Return the facts beside the chosen ranks, which hold whole replicas."""
        stages = 1 if layout is None else layout.pp
        least = np.full((len(survey.steps), stages), np.inf)
        if layout is not None and not chosen.all():
            mesh = _Mesh(survey.ranks[~chosen], layout, np.ones(int((~chosen).sum()), dtype=bool))
            by_stage = [
                np.nanmin(mesh.means(part.T.astype(np.float64)), axis=2)
                for part in np.array_split(survey.waits_s[~chosen], 16, axis=1)
            ]
            least = np.concatenate(by_stage)
        return cls(len(survey.ranks), survey.longest_s, survey.mean_s, least)


class Price(NamedTuple):
    """Time per step, as a mean over all steps, ns."""

    return_ns: float | None
    """What repairing the rank returns; None where it cannot be replayed."""
    most_ns: float
    """What its own work takes too long: it returns no more."""
    unknown: Message | None
    """Why it cannot be replayed."""


def price_of(
    table: Dense, run: Whole, outline: Outline, found: Slowdown, suspects: Sequence[int] = ()
) -> Price:
    """Return the price of one slow rank.

    Args:
        table: The summaries of some replicas, or of all.
        run: What holds for all ranks.
        outline: Mesh and schedule.
        found: The rank.
        suspects: All ranks that were found slow; the others are its healthy peers.
    """
    at = int(np.searchsorted(table.ranks, found.rank))
    excess = found.share / (1.0 + found.share)
    most = float((table.own_s()[found.slow, at] * excess).sum() * 1e9 / len(table.steps))
    graph, why = _schedule(outline, run.ranks)
    if graph is None or outline.layout is None:
        return Price(None, most, why)
    healthy = ~np.isin(table.ranks, suspects)
    slow = np.flatnonzero(found.slow)
    mesh = _Mesh(table.ranks, outline.layout, healthy)
    returns = _returns_ns(mesh, graph, table, run, found)
    mean = float(np.mean(returns)) * len(slow) / len(table.steps)
    return Price(min(max(mean, 0.0), most), most, None)


def _returns_ns(
    mesh: _Mesh, graph: ScheduleGraph, table: Dense, run: Whole, found: Slowdown
) -> FloatArray:
    """Return how much shorter slow steps would be with the rank repaired, ns.

    Healthy replicas of a step show when it would have ended; else healthy steps how to stretch the replay of the
    repaired one. Without both, replay less replay.
    """
    at = int(np.searchsorted(table.ranks, found.rank))
    chosen, others = _spread(found.slow), _spread(~found.slow)
    replayed = _Replay(table.at(chosen), mesh, graph)
    length = run.mean_s * 1e9
    repaired = replayed.repaired_ns(at, found.share, _usual_stretch(table, mesh, at))
    as_it_was = replayed.spans_ns()
    if mesh.has_healthy_replica and table.by_step(ALONG_DP).any():
        others_wait = run.least_wait_s[chosen]
        return replayed.saved_ns((length[chosen], others_wait), as_it_was, at, repaired)
    longest = repaired.max(axis=(1, 2))
    if len(others) < LEAST_OTHERS:
        return np.asarray(as_it_was.max(axis=(1, 2)) - longest)
    healthy = _Replay(table.at(others), mesh, graph).spans_ns()
    longer = np.median(length[others] / healthy.max(axis=(1, 2)))
    return np.asarray(length[chosen] - longer * longest)


def _spread(wanted: BoolArray) -> list[int]:
    """Return the positions of some of the wanted steps, spread evenly."""
    found = np.flatnonzero(wanted)
    places = np.linspace(0, len(found) - 1, min(len(found), MOST_STEPS)).round().astype(int)
    positions: list[int] = found[places].tolist()
    return positions


def _schedule(outline: Outline, ranks: int) -> tuple[ScheduleGraph | None, Message | None]:
    """Return the graph of a step, or None and the reason."""
    layout, schedule, microbatches = outline
    if layout is None:
        return None, message("unpriced.mesh")
    if ranks != layout.world_size:
        return None, message("unpriced.ranks")
    kind = ScheduleKind.NONE.value if layout.pp == 1 else schedule
    if kind is None or microbatches is None:
        return None, message("unpriced.schedule")
    if kind in OVERLAPPING:
        return None, message("unpriced.overlap")
    try:
        plan = make_plan(ScheduleKind(kind), layout.pp, microbatches, layout.vpp)
    except (ConfigError, ValueError) as error:
        return None, message("unpriced.plan", error=str(error))
    return schedule_graph(plan), None


class _Mesh:
    """Where the ranks are, by stage and by replica in their order, and which of them are healthy."""

    def __init__(self, ranks: IntArray, layout: ParallelLayout, healthy: BoolArray) -> None:
        at = coordinates_of(layout, ranks)
        stage, replica = at["pp"], at["dp"]
        replicas, replica = np.unique(replica, return_inverse=True)
        self.cell: tuple[IntArray, ...] = (stage, replica)
        self.shape = (layout.pp, len(replicas))
        self.is_sick = np.zeros(self.shape, dtype=bool)
        """Which stages of which replicas have a rank that was found slow."""
        self.is_sick[tuple(axis[~healthy] for axis in self.cell)] = True

    @property
    def has_healthy_replica(self) -> bool:
        """Return whether no rank of some replica was found slow."""
        return bool((~self.is_sick.any(axis=0)).any())

    def means(self, by_rank: FloatArray, ranks: slice | BoolArray = slice(None)) -> FloatArray:
        """Return the means [..., stage, replica] of values [..., rank] of some ranks; NaN without."""
        cell = tuple(axis[ranks] for axis in self.cell)
        flat = np.ravel_multi_index(cell, self.shape)
        order = np.argsort(flat, kind="stable")
        cells, starts, members = np.unique(flat[order], return_index=True, return_counts=True)
        # The members of all cells are added one after the other, as they come.
        total = by_rank[..., order[starts]]
        for after in range(1, int(members.max(initial=1))):
            longer = members > after
            total[..., longer] += by_rank[..., order[starts[longer] + after]]
        means = np.full((*by_rank.shape[:-1], self.shape[0] * self.shape[1]), np.nan)
        means[..., cells] = total / members
        return means.reshape(*by_rank.shape[:-1], *self.shape)


def _stretch(inside: FloatArray, own: FloatArray) -> FloatArray:
    """Return how much longer than its mean work a stage takes: its ranks wait for each other inside."""
    return 1.0 + np.divide(inside, own, out=np.zeros_like(own), where=own > 0)


def _usual_stretch(table: Dense, mesh: _Mesh, at: int) -> float:
    """Return how much longer than its mean work a pass of the stage of a rank is where no rank is slow.

    More than 1 also there: each pass waits for the slowest rank of its stage, which changes.
    """
    stage = int(mesh.cell[0][at])
    ranks = mesh.cell[0] == stage
    passes = np.stack([table.by_step(name)[:, ranks] for name in OWN_WORK])
    own = mesh.means(passes, ranks)[..., [stage], :].sum(axis=0)
    inside = mesh.means(table.by_step(_INSIDE)[:, ranks], ranks)[..., [stage], :]
    cells = _stretch(inside, own)[:, 0, ~mesh.is_sick[stage]]
    return float(cells.mean()) if cells.size else 1.0


class _Replay:
    """Replays steps of a run with the mean pass of each stage of each replica."""

    def __init__(self, table: Dense, mesh: _Mesh, graph: ScheduleGraph) -> None:
        self._graph, self._mesh = graph, mesh
        self._passes = np.stack([table.by_step(name) for name in OWN_WORK])
        self._rest = np.maximum(table.own_s() - self._passes.sum(axis=0), 0.0)
        own = mesh.means(self._passes)
        # The ranks of a stage go on together: what one works less than the slowest it waits inside.
        inside = mesh.means(table.by_step(_INSIDE))
        self._cells = own * _stretch(inside, own.sum(axis=0))
        # All wait for the last replica; what it needs itself is the transfer.
        self._waits = mesh.means(table.by_step(ALONG_DP))

    def spans_ns(self) -> FloatArray:
        """Return how long each stage of each replica worked on a step [step, stage, replica], ns."""
        return self._spans(self._cells, self._rest)

    def repaired_ns(self, at: int, share: float, stretch: float) -> FloatArray:
        """Return the same with the work of one rank as its peers have it, ns.

        Args:
            at: Position of the rank.
            share: By which its own work is longer.
            stretch: How much longer than its mean work a pass of its stage usually is.
        """
        stage, replica = (int(axis[at]) for axis in self._mesh.cell)
        mates = (self._mesh.cell[0] == stage) & (self._mesh.cell[1] == replica)
        own, rest, cells = self._passes.copy(), self._rest.copy(), self._cells.copy()
        own[..., at] /= 1.0 + share
        rest[..., at] /= 1.0 + share
        cells[..., stage, replica] = own[..., mates].mean(axis=-1) * stretch
        return self._spans(cells, rest)

    def saved_ns(
        self,
        seen: tuple[FloatArray, FloatArray],
        as_it_was: FloatArray,
        at: int,
        repaired: FloatArray,
    ) -> FloatArray:
        """Return how much shorter steps would be with a rank repaired, by when other replicas were done, ns.

        Args:
            seen: How long each step was, ns, and what the last of the other replicas waited [step, stage], s.
            as_it_was: What ``spans_ns`` returns.
            at: Position of the rank.
            repaired: What ``repaired_ns`` returns.
        """
        length_ns, others_wait = seen
        well, own = ~self._mesh.is_sick.any(axis=0), int(self._mesh.cell[1][at])
        steps = np.arange(len(length_ns))
        # A stage may begin the next step as soon as it has its gradients: the longest has no time to spare.
        longest = as_it_was.max(axis=2).argmax(axis=1)
        waited = self._waits[steps, longest] * 1e9
        beside = others_wait[steps, longest] * 1e9
        least = np.minimum(waited.min(axis=1), beside)[:, None]
        done = length_ns[:, None] - (waited - least)
        longer = done[:, well] / as_it_was[:, :, well].max(axis=1)
        rest = np.delete(done, own, axis=1).max(axis=1, initial=0.0)
        rest = np.maximum(rest, length_ns - (beside - least[:, 0]))
        ends = np.maximum(rest[:, None], longer * repaired[:, :, own].max(axis=1)[:, None])
        return np.asarray(length_ns - ends.mean(axis=1))

    def _spans(self, cells_s: FloatArray, rest_s: FloatArray) -> FloatArray:
        """Return the same as ``spans_ns`` for other work [kind, step, stage, replica], some steps at a time."""
        plan, steps = self._graph.plan, cells_s.shape[1]
        stages, replicas = self._mesh.shape
        count = np.zeros((len(OWN_WORK), stages))
        np.add.at(count, (plan.kind, plan.rank), 1.0)
        each = cells_s / np.maximum(count, 1.0)[:, None, :, None]
        tail = np.zeros((steps, *self._mesh.shape))
        np.maximum.at(tail, cast("Any", (..., *self._mesh.cell)), rest_s)
        size = max(1, MOST_CELLS // (len(plan) * replicas))
        spans = []
        for first in range(0, steps, size):
            part = slice(first, first + size)
            by_stage = each[:, part].swapaxes(1, 2).reshape(len(OWN_WORK), stages, -1)
            tails = tail[part].swapaxes(0, 1).reshape(stages, -1)
            passes = (by_stage * 1e9).round().astype(np.int64)[plan.kind, plan.rank]
            times = self._graph.times(passes, tail_ns=(tails * 1e9).round().astype(np.int64))
            found = times.finish_ns - times.start_ns[plan.is_first]
            spans.append(found.reshape(stages, -1, replicas).swapaxes(0, 1))
        return np.concatenate(spans).astype(np.float64)

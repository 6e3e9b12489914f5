"""Scenarios of a recorded run: the same program with some causes repaired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...formulas.schedules.engine import LANE_BLOCK
from ...tables.arrays import FloatArray, IntArray
from .contraction import Contraction, contract, nothing_between
from .effect_folding import EdgeEffect, EffectFolding, as_effects
from .lanes import cause_weights, lane_replay, level_places
from .marks import END
from .program import Program

BLOCK_VALUES = 1 << 24
"""Most times that are held at once (128 MiB); wide programs get fewer lanes a block."""


def replay_scenarios(
    program: Program, effects: FloatArray | Sequence[EdgeEffect], keep: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return step time and waiting of every lane, in ns per step.

    Args:
        program: The replay graph.
        effects: What each cause adds to the edges, ns: one effect a cause, or a matrix
            ``(edges, causes)``.
        keep: Which causes are left in each lane, 0..1, ``(causes, lanes)``.

    Returns:
        The mean step time, and the waiting for peers averaged over ranks; ``(lanes,)`` each.
    """
    lanes = _Lanes(program, effects)
    scale = program.windows.step_time_ns / lanes.recorded_step_ns
    parts = [lanes.summary(keep[:, block]) for block in lanes.blocks(keep.shape[1])]
    times, waits = (np.concatenate(part) for part in zip(*parts, strict=True))
    return times * scale, waits


def step_lengths(
    program: Program, effects: FloatArray | Sequence[EdgeEffect], keep: FloatArray
) -> FloatArray:
    """Return the length of every analysed step in every lane, ``(steps, lanes)``, ns.

    Arguments as for ``replay_scenarios``. With chained steps the length is the mean
    over ranks from end to end, else the longest of a step's ranks.
    """
    lanes = _Lanes(program, effects)
    return np.hstack([lanes.step_lengths(keep[:, block]) for block in lanes.blocks(keep.shape[1])])


def times_and_lengths(
    program: Program, effects: FloatArray | Sequence[EdgeEffect], keep: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the step times of ``replay_scenarios`` and the ``step_lengths`` of one replay for both."""
    lanes = _Lanes(program, effects)
    scale = program.windows.step_time_ns / lanes.recorded_step_ns
    parts = [lanes.times_and_lengths(keep[:, block]) for block in lanes.blocks(keep.shape[1])]
    times, lengths = zip(*parts, strict=True)
    return np.concatenate(times) * scale, np.hstack(lengths)


class _Lanes:
    """The contracted program with weights and effects folded, ready for blocks of lanes."""

    def __init__(self, program: Program, effects: FloatArray | Sequence[EdgeEffect]) -> None:
        self._program = program
        self._ends = _EndMarks(program)
        parts = [_split(program, effect) for effect in as_effects(effects)]
        base = _Weights.recorded(program)
        for part in parts:
            base.take_away(part)
        contraction = self._contraction = _safe_contraction(program, base, parts)
        self._root_ns = _ends_of(program, contraction.edges.is_root.nonzero()[0])
        self._skew_share = self._share_of_skew()
        self._ends_origin = contraction.origin(self._ends.rows)
        base_ns, self._base_of_ends = self._folded(base, with_offsets=True)
        del base
        place = level_places(contraction.graph)
        folding = EffectFolding(contraction, place, self._ends_origin)
        folded, of_ends = zip(*(folding.fold(*part) for part in parts), strict=True)
        del folding
        self._effects_of_ends = np.zeros((len(self._ends.rows), len(parts)))
        for cause, late in enumerate(of_ends):
            self._effects_of_ends[late.edge, cause] = late.ns
        wanted = self._ends_origin.node
        causes = cause_weights(folded, len(base_ns))
        self._lanes = lane_replay(contraction, base_ns, causes, wanted, place)

    def blocks(self, lanes: int) -> Iterator[slice]:
        """Yield slices of lanes that are few enough to be held at once."""
        most = min(LANE_BLOCK, max(1, BLOCK_VALUES // self._lanes.slots))
        yield from (slice(low, low + most) for low in range(0, lanes, most))

    @property
    def recorded_step_ns(self) -> float:
        """Return the step time by the recorded marks."""
        recorded = _ends_of(self._program, self._ends.rows)
        return float(self._step_time(recorded[:, None], self._root_ns[:, None])[0])

    def summary(self, keep: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return step time and waiting of a block of lanes."""
        ends, roots, waiting = self._replay(keep)
        windows = self._program.windows
        return self._step_time(ends, roots), waiting / (len(windows.ranks) * len(windows.steps))

    def step_lengths(self, keep: FloatArray) -> FloatArray:
        """Return the length of every step in a block of lanes, ``(steps, lanes)``."""
        ends, roots, _ = self._replay(keep)
        return self._step_lengths(ends, roots)

    def times_and_lengths(self, keep: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return step time and length of every step of a block of lanes."""
        ends, roots, _ = self._replay(keep)
        return self._step_time(ends, roots), self._step_lengths(ends, roots)

    def _step_lengths(self, ends: FloatArray, roots: FloatArray) -> FloatArray:
        by_step = pd.DataFrame(ends).groupby(self._ends.step)
        if self._program.windows.chained:
            end = by_step.mean().to_numpy()
            begin = np.vstack([end[:1], end[:-1]])
            begin[self._ends.opens] = self._by_run(roots).mean(axis=0)
            return np.asarray(end - begin)
        return np.asarray(by_step.max().to_numpy() - self._ends.step_start_ns[:, None])

    def _replay(self, keep: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return ends of steps, starts of ranks and waiting, each lane with its own skew."""
        roots = np.repeat(self._root_ns[:, None], keep.shape[1], axis=1)
        late = self._base_of_ends[:, None] + self._effects_of_ends @ keep
        for is_final in (not self._program.windows.chained, True):
            found = self._lanes.times(keep, roots)
            ends = found.nodes + late
            if is_final:
                break
            roots = roots + self._own_skew(ends)
        return ends, roots, found.waiting_ns

    def _folded(
        self, weight: _Weights, *, with_offsets: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Return weights of the contracted edges in level order, and of the ends of steps."""
        contraction = self._contraction
        edges, ends = contraction.fold(*weight, self._ends_origin, with_offsets=with_offsets)
        return edges[contraction.graph.edge], ends

    def _own_skew(self, ends: FloatArray) -> FloatArray:
        """Return how to move the starts of the ranks so that each lane begins with its own skew.

        Ranks start a step at different times, by what the causes did in the step before
        it. What comes before the first step of a run is not replayed; the skew after that step
        is taken in its place, as the difference to the recorded one, as far as the ranks
        have started with that.
        """
        lane = self._skew(ends[self._ends.first])
        change = lane - self._skew_after_first()[..., None]
        return np.asarray(
            (self._skew_share[:, None] * change).reshape(ends[self._ends.first].shape)
        )

    def _by_run(self, values: FloatArray) -> FloatArray:
        """Return values of roots, or of first or last ends, by rank and run."""
        return values.reshape(len(self._program.windows.ranks), -1, *values.shape[1:])

    def _skew(self, times: FloatArray) -> FloatArray:
        """Return how far the time of each rank is from the mean of its run, ``(ranks, runs, …)``."""
        by_run = self._by_run(times)
        return np.asarray(by_run - by_run.mean(axis=0))

    def _skew_after_first(self) -> FloatArray:
        """Return the recorded skew after the first step of every run."""
        return self._skew(_ends_of(self._program, self._ends.rows[self._ends.first]))

    def _share_of_skew(self) -> FloatArray:
        """Return how much of the skew after its first step the ranks have started a run with, 0..1.

        The slope of the one on the other, through zero. A job that starts together has none
        of it: there was no step before that the causes could have acted in.
        """
        if not self._program.windows.chained:
            return np.zeros(1)
        after, before = self._skew_after_first(), self._skew(self._root_ns)
        square, both = (after**2).sum(axis=0), (after * before).sum(axis=0)
        share = np.divide(both, square, out=np.zeros_like(both), where=square > 0)
        return np.asarray(np.clip(share, 0.0, 1.0))

    def _step_time(self, ends: FloatArray, roots: FloatArray) -> FloatArray:
        """Return the mean step time of every lane, as ``StepWindows.step_time_ns`` defines it."""
        if self._program.windows.chained:
            steps = len(self._program.windows.steps)
            spans = self._by_run(ends[self._ends.last] - roots)
            return np.asarray(spans.mean(axis=0).sum(axis=0) / steps)
        by_step = pd.DataFrame(ends).groupby(self._ends.step).max()
        return np.asarray((by_step.to_numpy() - self._ends.step_start_ns[:, None]).mean(axis=0))


class _EndMarks:
    """The rows at which steps end, and which of them are the first and last of a rank and run.

    Attributes:
        opens: Which steps are the first of a run.
    """

    def __init__(self, program: Program) -> None:
        marks = program.marks
        is_root = marks["is_root"].to_numpy(bool)
        step, rank = marks["step"].to_numpy(), marks["rank"].to_numpy()
        self.rows: IntArray = np.flatnonzero((marks["mark"].to_numpy() == END) & ~is_root)
        self.step = step[self.rows]
        windows = program.windows
        run = windows.run[np.searchsorted(windows.steps, self.step)]
        own = rank[self.rows]
        differs = np.append(True, (own[1:] != own[:-1]) | (run[1:] != run[:-1]))
        self.first = np.flatnonzero(differs)
        self.last = np.flatnonzero(np.append(differs[1:], True))
        self.opens = np.flatnonzero(np.append(True, np.diff(windows.run) != 0))
        root = np.flatnonzero(is_root)
        begin = pd.Series(marks["start_ns"].to_numpy()[root]).groupby(step[root])
        self.step_start_ns = begin.min().to_numpy(np.float64)


def _ends_of(program: Program, rows: IntArray) -> FloatArray:
    """Return the recorded ends of some rows of the marks."""
    return np.asarray(program.marks["end_ns"].to_numpy()[rows], dtype=np.float64)


class _Split(NamedTuple):
    """An effect by row of the marks, and by queue and wait."""

    work: EdgeEffect
    wire: EdgeEffect


class _Weights(NamedTuple):
    """Weights of a program: work before each row, and the wires of each queue and wait."""

    work_ns: FloatArray
    wire_ns: FloatArray

    @classmethod
    def recorded(cls, program: Program) -> _Weights:
        """Return the weights as recorded."""
        wire_ns = np.concatenate([program.queue.ns, program.wire_ns])
        return cls(program.marks["work_ns"].to_numpy(np.float64).copy(), wire_ns)

    def take_away(self, effect: _Split) -> None:
        """Subtract an effect, in place."""
        self.work_ns[effect.work.edge] -= effect.work.ns
        self.wire_ns[effect.wire.edge] -= effect.wire.ns


def _split(program: Program, effect: EdgeEffect) -> _Split:
    """Return an effect on the edges of a program by row, and by queue and wait."""
    work = effect.part(0, len(program.work_edges))
    wire = effect.part(program.first_wire, len(program.wire_event))
    return _Split(EdgeEffect(program.work_edges[work.edge], work.ns), wire)


def _safe_contraction(program: Program, base: _Weights, effects: Sequence[_Split]) -> Contraction:
    """Return the program's contraction, with nodes for waits that lose what it rests on.

    It takes waits to last as long as their operation, which needs wires that are
    never negative and nothing that takes time between issue and wait, in whatever lane.
    """
    least, held = base.wire_ns.copy(), len(program.queue.join)
    lasting = np.zeros(len(program.marks), dtype=bool)
    for effect in effects:
        least[effect.wire.edge] += np.minimum(effect.wire.ns, 0.0)
        lasting[effect.work.edge] = True
    contraction = program.contraction
    unsafe = (least[held:] < 0) | lasting[program.waits]
    for effect in effects:
        lasting[program.waits[effect.wire.part(held, len(program.waits)).edge]] = True
    unsafe |= ~nothing_between(lasting, contraction.edges.issue, program.waits)
    if not unsafe[np.concatenate([contraction.chained, contraction.released])].any():
        return contraction
    return contract(contraction.edges, unsafe)

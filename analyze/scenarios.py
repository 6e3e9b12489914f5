"""Scenarios of a recorded run: the same program with some causes repaired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from .contraction import Contraction, contract, replay_contraction
from .intervals import IntArray
from .marks import END
from .program import Program
from .replay import LANE_BLOCK, FloatArray

BLOCK_VALUES = 1 << 24
"""Most times that are held at once (128 MiB); large programs get fewer lanes a block."""


def replay_scenarios(
    program: Program, effects: FloatArray | Sequence[FloatArray], keep: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return step time and waiting of every lane, in ns per step.

    Args:
        program: The replay graph.
        effects: What each cause adds to every edge, ns; ``(edges, causes)``, or a list of
            one array per cause.
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
    program: Program, effects: FloatArray | Sequence[FloatArray], keep: FloatArray
) -> FloatArray:
    """Return the length of every analysed step in every lane, ``(steps, lanes)``, ns.

    Arguments as for ``replay_scenarios``. With chained steps the length is the mean
    over ranks from end to end, else the longest of a step's ranks.
    """
    lanes = _Lanes(program, effects)
    return np.hstack([lanes.step_lengths(keep[:, block]) for block in lanes.blocks(keep.shape[1])])


class _Lanes:
    """The contracted program with weights and effects folded, ready for blocks of lanes."""

    def __init__(self, program: Program, effects: FloatArray | Sequence[FloatArray]) -> None:
        effects = list(effects.T) if isinstance(effects, np.ndarray) else effects
        self._program = program
        self._ends = _EndMarks(program)
        base = program.base_ns.copy()
        for effect in effects:
            base -= effect
        contraction = self._contraction = _safe_contraction(program, base, effects)
        self._ends_origin = contraction.origin(self._ends.rows)
        self._base, self._base_of_ends = self._folded(base, with_offsets=True)
        self._effects = np.empty((len(self._base), len(effects)))
        self._effects_of_ends = np.empty((len(self._base_of_ends), len(effects)))
        for cause, effect in enumerate(effects):
            self._effects[:, cause], self._effects_of_ends[:, cause] = self._folded(effect)
        self._root_ns = program.recorded_ns[contraction.edges.is_root.nonzero()[0]]

    def blocks(self, lanes: int) -> Iterator[slice]:
        """Yield slices of lanes that are few enough to be held at once."""
        count = self._contraction.graph.node_count
        most = min(LANE_BLOCK, max(1, BLOCK_VALUES // count))
        yield from (slice(low, low + most) for low in range(0, lanes, most))

    @property
    def recorded_step_ns(self) -> float:
        """Return the step time by the recorded marks."""
        recorded = self._program.recorded_ns
        return float(self._step_time(recorded[self._ends.rows][:, None], self._root_ns[:, None])[0])

    def summary(self, keep: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return step time and waiting of a block of lanes."""
        ends, roots, waiting = self._replay(keep)
        windows = self._program.windows
        return self._step_time(ends, roots), waiting / (len(windows.ranks) * len(windows.steps))

    def step_lengths(self, keep: FloatArray) -> FloatArray:
        """Return the length of every step in a block of lanes, ``(steps, lanes)``."""
        ends, roots, _ = self._replay(keep)
        by_step = pd.DataFrame(ends).groupby(self._ends.step)
        if self._program.windows.chained:
            border = np.vstack([roots.mean(axis=0), by_step.mean().to_numpy()])
            return np.asarray(np.diff(border, axis=0))
        return np.asarray(by_step.max().to_numpy() - self._ends.step_start_ns[:, None])

    def _replay(self, keep: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return ends of steps, starts of ranks and waiting, each lane with its own skew."""
        roots = np.repeat(self._root_ns[:, None], keep.shape[1], axis=1)
        late = self._base_of_ends[:, None] + self._effects_of_ends @ keep
        for is_final in (not self._program.windows.chained, True):
            found = replay_contraction(self._contraction, self._base, self._effects, keep, roots)
            ends = found.nodes[self._ends_origin.node] + late
            if is_final:
                break
            roots = roots + self._own_skew(ends)
        return ends, roots, found.waiting_ns

    def _folded(
        self, weight: FloatArray, *, with_offsets: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Return weights of the contracted edges in level order, and of the ends of steps."""
        contraction = self._contraction
        work, wire = _split(self._program, weight)
        edges, ends = contraction.fold(work, wire, self._ends_origin, with_offsets=with_offsets)
        return edges[contraction.graph.edge], ends

    def _own_skew(self, ends: FloatArray) -> FloatArray:
        """Return how to move the starts of the ranks so that each lane begins with its own skew.

        Ranks start a step at different times, by what the causes did in the step before
        it. What comes before the first analysed step is not replayed; the skew after it
        is taken in its place, as the difference to the recorded one.
        """
        first = self._ends.first
        lane, recorded = ends[first], self._program.recorded_ns[self._ends.rows[first]]
        return np.asarray((lane - lane.mean(axis=0)) - (recorded - recorded.mean())[:, None])

    def _step_time(self, ends: FloatArray, roots: FloatArray) -> FloatArray:
        """Return the mean step time of every lane, as ``StepWindows.step_time_ns`` defines it."""
        if self._program.windows.chained:
            steps = len(self._program.windows.steps)
            return np.asarray((ends[self._ends.last] - roots).mean(axis=0) / steps)
        by_step = pd.DataFrame(ends).groupby(self._ends.step).max()
        return np.asarray((by_step.to_numpy() - self._ends.step_start_ns[:, None]).mean(axis=0))


class _EndMarks:
    """The rows at which steps end, and which of them are the first and last of a rank."""

    def __init__(self, program: Program) -> None:
        marks = program.marks
        is_root = marks["is_root"].to_numpy(bool)
        step, rank = marks["step"].to_numpy(), marks["rank"].to_numpy()
        self.rows: IntArray = np.flatnonzero((marks["mark"].to_numpy() == END) & ~is_root)
        self.step = step[self.rows]
        differs = np.append(True, rank[self.rows][1:] != rank[self.rows][:-1])
        self.first = np.flatnonzero(differs)
        self.last = np.flatnonzero(np.append(differs[1:], True))
        roots = marks.loc[is_root, ["step", "start_ns"]]
        self.step_start_ns = roots.groupby("step")["start_ns"].min().to_numpy(np.float64)


def _split(program: Program, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the weights of work by row, and those of wires by wait."""
    work = np.zeros(len(program.marks))
    work[program.work_edges] = weight[: len(program.work_edges)]
    return work, weight[program.edge_count - len(program.waits) :]


def _safe_contraction(
    program: Program, base: FloatArray, effects: Sequence[FloatArray]
) -> Contraction:
    """Return the program's contraction, with nodes for waits that lose what it rests on.

    It takes waits to last as long as their operation, which needs wires that are
    never negative and no work between issue and wait, in whatever lane.
    """
    first = program.edge_count - len(program.waits)
    before = np.searchsorted(program.work_edges, program.waits)
    wire = base[first:].copy()
    has_work = np.zeros(len(wire), dtype=bool)
    for effect in effects:
        wire += np.minimum(effect[first:], 0.0)
        has_work |= effect[before] != 0
    unsafe = (wire < 0) | has_work
    contraction = program.contraction
    if not unsafe[np.concatenate([contraction.chained, contraction.released])].any():
        return contraction
    return contract(contraction.edges, unsafe)

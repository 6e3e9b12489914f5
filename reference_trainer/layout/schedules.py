"""In which order each pipeline rank does its passes, and which stages it holds.

A *stage* is a part of the model in model order, a *chunk* one of the stages of a
rank. Looped schedules deal the stages out in turn, V-shaped ones go down the ranks
and come back, so that the first and the last stage share a rank::

    looped, 2 ranks x 2 chunks    rank 0: stages 0 2    rank 1: stages 1 3
    V                             rank 0: stages 0 3    rank 1: stages 1 2

A backward pass may be split into its half for the inputs, which the stage before
waits for, and its half for the weights, which nobody waits for and which therefore
can fill the bubble. Pure integers, no torch. Sources:

* GPipe: Huang et al. 2019, arXiv 1811.06965, section 2.3;
* 1F1B and interleaved 1F1B: Narayanan et al. 2021, arXiv 2104.04473, section 2.2;
* ZB-H1 and ZB-V: Qi et al. 2023, arXiv 2401.10241, sections 2.1 and 6;
* DualPipeV: DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1, cut in half at its
  axis of symmetry ("cut-in-half" form of the DualPipe repository).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from meshscope.analyze.formulas.planning.passes import Order, Pass, PassKind
from meshscope.probe.schema.terms import ScheduleKind

__all__ = [
    "SPLIT_BACKWARD",
    "V_SHAPED",
    "Order",
    "Pass",
    "PassKind",
    "pipeline_orders",
    "rank_of_last_stage",
    "stages_of_rank",
]

V_SHAPED = frozenset({ScheduleKind.ZB_V, ScheduleKind.DUALPIPE_V})
"""Schedules whose ranks hold two stages each, laid out as a V."""

SPLIT_BACKWARD = frozenset({ScheduleKind.ZB_H1, *V_SHAPED})
"""Schedules that do the weights' half of a backward pass later than the inputs' half."""


def pipeline_orders(kind: str, ranks: int, microbatches: int, chunks: int = 1) -> tuple[Order, ...]:
    """Return the order of every pipeline rank.

    Args:
        kind: A ``ScheduleKind``.
        ranks: Pipeline ranks.
        microbatches: Microbatches of a step; interleaved 1F1B needs a multiple of ``ranks``,
            DualPipeV at least ``2 * ranks``.
        chunks: Stages a rank; 1 but for interleaved 1F1B, and 2 for the V-shaped ones.
    """
    if kind == ScheduleKind.INTERLEAVED:
        return tuple(_interleaved(rank, ranks, microbatches, chunks) for rank in range(ranks))
    rank_order = _RANK_ORDERS[ScheduleKind(kind)]
    return tuple(rank_order(rank, ranks, microbatches) for rank in range(ranks))


def stages_of_rank(kind: str, rank: int, ranks: int, chunks: int = 1) -> tuple[int, ...]:
    """Return the stages that a rank holds, by chunk."""
    if kind in V_SHAPED:
        return (rank, 2 * ranks - 1 - rank)
    return tuple(chunk * ranks + rank for chunk in range(chunks))


def rank_of_last_stage(kind: str, ranks: int) -> int:
    """Return the pipeline rank that holds the head and computes the loss."""
    return 0 if kind in V_SHAPED else ranks - 1


def _gpipe(rank: int, _ranks: int, microbatches: int) -> Order:
    return tuple(
        Pass(kind, rank, index)
        for kind in (PassKind.FORWARD, PassKind.BACKWARD)
        for index in range(microbatches)
    )


def _one_f_one_b(rank: int, ranks: int, microbatches: int) -> Order:
    """Alternate after ``ranks - 1 - rank`` forwards: a stage holds at most one more."""
    forwards = [Pass(PassKind.FORWARD, rank, index) for index in range(microbatches)]
    backwards = [Pass(PassKind.BACKWARD, rank, index) for index in range(microbatches)]
    return _alternate(forwards, backwards, ahead=ranks - 1 - rank)


def _interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> Order:
    """Visit the chunks in rounds of ``ranks`` microbatches, forward up and backward down."""
    rounds = [range(first, first + ranks) for first in range(0, microbatches, ranks)]
    stages = stages_of_rank(ScheduleKind.INTERLEAVED, rank, ranks, chunks)
    forwards = [
        Pass(PassKind.FORWARD, stage, index) for own in rounds for stage in stages for index in own
    ]
    backwards = [
        Pass(PassKind.BACKWARD, stage, index)
        for own in rounds
        for stage in reversed(stages)
        for index in own
    ]
    return _alternate(forwards, backwards, ahead=(chunks - 1) * ranks + 2 * (ranks - 1 - rank))


def _alternate(forwards: Sequence[Pass], backwards: Sequence[Pass], *, ahead: int) -> Order:
    """Return ``ahead`` forwards as warm-up, then one of each, then the backwards left over."""
    ahead = min(ahead, len(forwards))
    warmup = forwards[:ahead]
    steady = [one for pair in zip(forwards[ahead:], backwards, strict=False) for one in pair]
    cooldown = backwards[len(forwards) - ahead :]
    return (*warmup, *steady, *cooldown)


def _zb_h1(rank: int, ranks: int, microbatches: int) -> Order:
    """Follow 1F1B with split backwards; the weights of rank r lag r microbatches behind.

    Together with the ``ranks - 1 - rank`` forwards ahead, no rank holds more
    activations than the first rank of 1F1B.
    """
    order: list[Pass] = []
    for one in _one_f_one_b(rank, ranks, microbatches):
        if one.kind is PassKind.FORWARD:
            order.append(one)
            continue
        order.append(one._replace(kind=PassKind.INPUT))
        if one.microbatch >= rank:
            order.append(Pass(PassKind.WEIGHT, rank, one.microbatch - rank))
    left = range(max(0, microbatches - rank), microbatches)
    return (*order, *(Pass(PassKind.WEIGHT, rank, index) for index in left))


def _zb_v(rank: int, ranks: int, microbatches: int) -> Order:
    """Lay the order out for at least ``2 * ranks - 1`` microbatches, then drop those too many."""
    row = _VRow(rank, ranks, max(microbatches, 2 * ranks - 1))
    row.add(PassKind.FORWARD, 0, times=2 * (ranks - rank) - 1)
    for _ in range(rank):
        row.add(PassKind.FORWARD, 1)
        row.add(PassKind.FORWARD, 0)
    for _ in range(ranks - rank):
        row.add(PassKind.FORWARD, 1)
        row.add_both_halves(1)
    while row.left(PassKind.FORWARD, 1):
        row.add(PassKind.FORWARD, 0)
        row.add_both_halves(0)
        row.add(PassKind.FORWARD, 1)
        row.add_both_halves(1)
    for _ in range(rank):
        row.add(PassKind.INPUT, 0)
        row.add(PassKind.INPUT, 1)
    for _ in range(ranks - rank):
        row.add_both_halves(0)
    for chunk in (1, 0):
        row.add(PassKind.WEIGHT, chunk, times=microbatches)
    return tuple(one for one in row.order if one.microbatch < microbatches)


def _dualpipe_v(rank: int, ranks: int, microbatches: int) -> Order:
    """Feed both legs of the V at once; pairs of forward and backward follow each other here.

    The published schedule computes the two passes of a pair at the same time, which
    needs kernels made for it; the order is the same.
    """
    row = _VRow(rank, ranks, microbatches)
    below = ranks - 1 - rank
    row.add(PassKind.FORWARD, 0, times=2 * below)
    for _ in range(rank + 1):
        row.add(PassKind.FORWARD, 0)
        row.add(PassKind.FORWARD, 1)
    for _ in range(below):
        row.add_both_halves(1)
        row.add(PassKind.FORWARD, 1)
    for _ in range(microbatches - 2 * ranks + rank + 1):
        row.add(PassKind.FORWARD, 0)
        row.add(PassKind.BACKWARD, 1)
        row.add(PassKind.FORWARD, 1)
        row.add(PassKind.BACKWARD, 0)
    for _ in range(below):
        row.add(PassKind.BACKWARD, 1)
        row.add(PassKind.FORWARD, 1)
        row.add(PassKind.BACKWARD, 0)
    # The first half of the drain still has somebody to wait for whole backwards.
    owed: deque[int] = deque()
    for position in range(2 * (rank + 1)):
        chunk = 1 - position % 2
        if position <= rank:
            row.add(PassKind.BACKWARD, chunk)
        else:
            row.add(PassKind.INPUT, chunk)
            owed.append(chunk)
    for _ in range(below):
        row.add(PassKind.WEIGHT, owed.popleft())
        row.add(PassKind.INPUT, 0)
        owed.append(0)
    for chunk in owed:
        row.add(PassKind.WEIGHT, chunk)
    return tuple(row.order)


class _VRow:
    """The growing order of one rank of a V; each pass takes the next microbatch of its kind."""

    def __init__(self, rank: int, ranks: int, microbatches: int) -> None:
        self.order: list[Pass] = []
        self._stages = stages_of_rank(ScheduleKind.ZB_V, rank, ranks)
        self._microbatches = microbatches
        self._next: dict[tuple[PassKind, int], int] = {}

    def left(self, kind: PassKind, chunk: int) -> bool:
        """Return whether a microbatch has not yet had this pass."""
        return self._next.get((kind, chunk), 0) < self._microbatches

    def add(self, kind: PassKind, chunk: int, *, times: int = 1) -> None:
        """Append the next passes of a kind, as far as any are left; a whole backward is both."""
        parts = (PassKind.INPUT, PassKind.WEIGHT) if kind is PassKind.BACKWARD else (kind,)
        for _ in range(times):
            if not self.left(parts[0], chunk):
                return
            index = self._next.get((parts[0], chunk), 0)
            self.order.append(Pass(kind, self._stages[chunk], index))
            for part in parts:
                self._next[part, chunk] = self._next.get((part, chunk), 0) + 1

    def add_both_halves(self, chunk: int) -> None:
        """Append a backward as its two halves, one after the other."""
        self.add(PassKind.INPUT, chunk)
        self.add(PassKind.WEIGHT, chunk)


_RANK_ORDERS: dict[ScheduleKind, Callable[[int, int, int], Order]] = {
    ScheduleKind.GPIPE: _gpipe,
    ScheduleKind.ONE_F_ONE_B: _one_f_one_b,
    ScheduleKind.ZB_H1: _zb_h1,
    ScheduleKind.ZB_V: _zb_v,
    ScheduleKind.DUALPIPE_V: _dualpipe_v,
}

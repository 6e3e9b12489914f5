"""The order in which each pipeline rank does its passes, as a function for each published schedule.

A *stage* is a part of the model in model order, a *chunk* one of the stages of a rank. Looped
schedules deal the stages out in turn, V-shaped ones go down the ranks and come back, so that the
first and the last stage share a rank::

    looped, 2 ranks x 2 chunks    rank 0: stages 0 2    rank 1: stages 1 3
    V                             rank 0: stages 0 3    rank 1: stages 1 2

A backward pass may be split into its half for the inputs, which the stage before waits for, and
its half for the weights, which nobody waits for and which therefore can fill the bubble.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from .passes import Order, Pass, PassKind

_FORWARD, _BACKWARD, _INPUT, _WEIGHT = PassKind


def gpipe(rank: int, _ranks: int, microbatches: int, _chunks: int) -> Order:
    """All forward passes, then all backward passes (Huang et al. 2019, arXiv 1811.06965, 2.3)."""
    kinds, rows = (_FORWARD, _BACKWARD), range(microbatches)
    return tuple(Pass(kind, rank, index) for kind in kinds for index in rows)


def one_f_one_b(rank: int, ranks: int, microbatches: int, _chunks: int) -> Order:
    """Alternate after ``ranks - 1 - rank`` forwards: a stage holds at most one more.

    Narayanan et al., PipeDream, 2019, section 3.2.
    """
    forwards = [Pass(_FORWARD, rank, index) for index in range(microbatches)]
    backwards = [Pass(_BACKWARD, rank, index) for index in range(microbatches)]
    return _alternate(forwards, backwards, ahead=ranks - 1 - rank)


def interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> Order:
    """Visit the chunks in rounds of microbatches, forward up and backward down.

    Narayanan et al. 2021, arXiv 2104.04473, section 2.2. Where the ranks do not divide the
    microbatches, the rounds differ by one and none is smaller than the ranks: a smaller one
    would deadlock.
    """
    if chunks == 1:
        return one_f_one_b(rank, ranks, microbatches, chunks)
    rounds = _rounds(microbatches, ranks)
    stages = looped_stages(rank, ranks, chunks)
    forwards = [Pass(_FORWARD, stage, at) for own in rounds for stage in stages for at in own]
    backwards = [
        Pass(_BACKWARD, stage, at) for own in rounds for stage in reversed(stages) for at in own
    ]
    widest = max(len(own) for own in rounds)
    return _alternate(forwards, backwards, ahead=(chunks - 1) * widest + 2 * (ranks - 1 - rank))


def zb_h1(rank: int, ranks: int, microbatches: int, chunks: int) -> Order:
    """Follow 1F1B with split backwards; the weights of rank r lag r microbatches behind.

    With the ``ranks - 1 - rank`` forwards ahead, no rank holds more activations than the first
    rank of 1F1B (Qi et al. 2023, arXiv 2401.10241, section 2.1).
    """
    order: list[Pass] = []
    for one in one_f_one_b(rank, ranks, microbatches, chunks):
        if one.kind is _FORWARD:
            order.append(one)
            continue
        order.append(one._replace(kind=_INPUT))
        if one.microbatch >= rank:
            order.append(Pass(_WEIGHT, rank, one.microbatch - rank))
    left = range(max(0, microbatches - rank), microbatches)
    return (*order, *(Pass(_WEIGHT, rank, index) for index in left))


def zb_v(rank: int, ranks: int, microbatches: int, _chunks: int) -> Order:
    """Two chunks a rank as a V, and halves of backwards (Qi et al. 2023, section 6).

    Laid out for at least ``2 * ranks - 1`` microbatches; the passes of those too many are dropped.
    """
    row = _VRow(rank, ranks, max(microbatches, 2 * ranks - 1))
    row.add(_FORWARD, 0, times=2 * (ranks - rank) - 1)
    for _ in range(rank):
        row.add(_FORWARD, 1)
        row.add(_FORWARD, 0)
    for _ in range(ranks - rank):
        row.add(_FORWARD, 1)
        row.add_both_halves(1)
    while row.left(_FORWARD, 1):
        row.add(_FORWARD, 0)
        row.add_both_halves(0)
        row.add(_FORWARD, 1)
        row.add_both_halves(1)
    for _ in range(rank):
        row.add(_INPUT, 0)
        row.add(_INPUT, 1)
    for _ in range(ranks - rank):
        row.add_both_halves(0)
    for chunk in (1, 0):
        row.add(_WEIGHT, chunk, times=microbatches)
    return tuple(one for one in row.order if one.microbatch < microbatches)


def dualpipe_v(rank: int, ranks: int, microbatches: int, _chunks: int) -> Order:
    """Feed both legs of the V at once; the two passes of a pair follow each other here.

    DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1, in the "cut-in-half" form of the DualPipe
    repository. The published schedule computes a forward and a backward at the same time, which
    needs kernels made for it; the order is the same.
    """
    row = _VRow(rank, ranks, microbatches)
    below = ranks - 1 - rank
    row.add(_FORWARD, 0, times=2 * below)
    for _ in range(rank + 1):
        row.add(_FORWARD, 0)
        row.add(_FORWARD, 1)
    for _ in range(below):
        row.add_both_halves(1)
        row.add(_FORWARD, 1)
    for _ in range(microbatches - 2 * ranks + rank + 1):
        row.add(_FORWARD, 0)
        row.add(_BACKWARD, 1)
        row.add(_FORWARD, 1)
        row.add(_BACKWARD, 0)
    for _ in range(below):
        row.add(_BACKWARD, 1)
        row.add(_FORWARD, 1)
        row.add(_BACKWARD, 0)
    # The first half of the drain still has somebody to wait for whole backwards.
    owed: deque[int] = deque()
    for position in range(2 * (rank + 1)):
        chunk = 1 - position % 2
        if position <= rank:
            row.add(_BACKWARD, chunk)
        else:
            row.add(_INPUT, chunk)
            owed.append(chunk)
    for _ in range(below):
        row.add(_WEIGHT, owed.popleft())
        row.add(_INPUT, 0)
        owed.append(0)
    for chunk in owed:
        row.add(_WEIGHT, chunk)
    return tuple(row.order)


def looped_stages(rank: int, ranks: int, chunks: int) -> tuple[int, ...]:
    """Return the stages of a rank, by chunk, where they are dealt out in turn."""
    return tuple(chunk * ranks + rank for chunk in range(chunks))


def v_stages(rank: int, ranks: int) -> tuple[int, ...]:
    """Return the two stages of a rank of a V, by chunk."""
    return (rank, 2 * ranks - 1 - rank)


def _alternate(forwards: Sequence[Pass], backwards: Sequence[Pass], *, ahead: int) -> Order:
    """Return ``ahead`` forwards as warm-up, then one of each, then the backwards left over."""
    ahead = min(ahead, len(forwards))
    warmup = forwards[:ahead]
    steady = [one for pair in zip(forwards[ahead:], backwards, strict=False) for one in pair]
    cooldown = backwards[len(forwards) - ahead :]
    return (*warmup, *steady, *cooldown)


def _rounds(microbatches: int, ranks: int) -> list[range]:
    """Return the microbatches in rounds of at least ``ranks`` each, or in one round."""
    count = max(1, microbatches // ranks)
    borders = [round_ * microbatches // count for round_ in range(count + 1)]
    return [range(low, high) for low, high in pairwise(borders)]


class _VRow:
    """The growing order of one rank of a V; each pass takes the next microbatch of its kind."""

    def __init__(self, rank: int, ranks: int, microbatches: int) -> None:
        self.order: list[Pass] = []
        self._stages = v_stages(rank, ranks)
        self._microbatches = microbatches
        self._next: dict[tuple[PassKind, int], int] = {}

    def left(self, kind: PassKind, chunk: int) -> bool:
        """Return whether a microbatch has not yet had this pass."""
        return self._next.get((kind, chunk), 0) < self._microbatches

    def add(self, kind: PassKind, chunk: int, *, times: int = 1) -> None:
        """Append the next passes of a kind, as far as any are left; a whole backward is both."""
        parts = (_INPUT, _WEIGHT) if kind is _BACKWARD else (kind,)
        for _ in range(times):
            if not self.left(parts[0], chunk):
                return
            index = self._next.get((parts[0], chunk), 0)
            self.order.append(Pass(kind, self._stages[chunk], index))
            for part in parts:
                self._next[part, chunk] = self._next.get((part, chunk), 0) + 1

    def add_both_halves(self, chunk: int) -> None:
        """Append a backward as its two halves, one after the other."""
        self.add(_INPUT, chunk)
        self.add(_WEIGHT, chunk)

"""The order in which each pipeline rank does its passes, for the published schedules.

* **GPipe**: all forward passes, then all backward passes (Huang et al., 2019, section 2.3).
* **1F1B**: rank r fills with p - r - 1 forward passes, then alternates (Narayanan et al.,
  PipeDream, 2019, section 3.2).
* **interleaved 1F1B**: v chunks a rank, visited in rounds of p microbatches (Narayanan et al.,
  Megatron-LM, SC 2021, section 2.2.2). Where p does not divide m, the rounds differ by one
  microbatch and none is smaller than p, because a smaller one would deadlock.
* **ZB-H1**: 1F1B with the backward pass split; weights of rank r lag r passes behind (Qi et
  al., Zero Bubble Pipeline Parallelism, 2023, section 2.1).
* **ZB-V**: two chunks a rank laid out as a V (same paper, section 6).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import ScheduleKind, SpanKind

FORWARD, BACKWARD = SpanKind.FORWARD, SpanKind.BACKWARD
INPUT, WEIGHT = SpanKind.BACKWARD_INPUT, SpanKind.BACKWARD_WEIGHT


class Action(NamedTuple):
    """One pass of one microbatch through one chunk of a rank."""

    kind: SpanKind
    microbatch: int
    chunk: int = 0


Order = tuple[Action, ...]

V_SHAPED = (ScheduleKind.ZB_V, ScheduleKind.DUALPIPE_V)
"""Two chunks a rank, there and back again: the first rank holds the first and the last one."""


def rank_orders(
    schedule: ScheduleKind, ranks: int, microbatches: int, chunks: int = 1
) -> tuple[Order, ...]:
    """Return what each pipeline rank does in one step, in program order.

    Args:
        schedule: ``none`` means one rank that does its microbatches one after the other.
        ranks: Pipeline ranks.
        microbatches: Microbatches of a step.
        chunks: Virtual stages a rank; 1 but for interleaved 1F1B, and 2 for ZB-V.

    Raises:
        ConfigError: The schedule is not generated here, or does not fit the sizes.
    """
    _check(schedule, ranks, microbatches, chunks)
    if schedule is ScheduleKind.INTERLEAVED and chunks > 1:
        return tuple(_interleaved(rank, ranks, microbatches, chunks) for rank in range(ranks))
    if schedule is ScheduleKind.ZB_V:
        return tuple(_zb_v(rank, ranks, microbatches) for rank in range(ranks))
    if schedule is ScheduleKind.ZB_H1:
        return tuple(_zb_h1(rank, ranks, microbatches) for rank in range(ranks))
    if schedule is ScheduleKind.GPIPE:
        return (_gpipe(microbatches),) * ranks
    return tuple(_one_f_one_b(rank, ranks, microbatches) for rank in range(ranks))


def stage_of(schedule: ScheduleKind, rank: int, chunk: int, ranks: int) -> int:
    """Return the stage in model order that a rank holds as its given chunk."""
    if schedule in V_SHAPED and chunk == 1:
        return 2 * ranks - 1 - rank
    return chunk * ranks + rank


def _check(schedule: ScheduleKind, ranks: int, microbatches: int, chunks: int) -> None:
    if min(ranks, microbatches, chunks) < 1:
        raise ConfigError("ranks, microbatches and chunks must be at least 1", where="schedule")
    if schedule in (ScheduleKind.DUALPIPE_V, ScheduleKind.OTHER):
        raise ConfigError(f"the order of {schedule} is not known here", where="schedule")
    if schedule is ScheduleKind.NONE and ranks > 1:
        raise ConfigError(
            f"{ranks} pipeline ranks need a schedule",
            where="schedule",
            remedy="Choose gpipe, 1f1b, interleaved-1f1b, zb-h1 or zb-v",
        )
    if schedule is ScheduleKind.ZB_V and chunks != 2:
        raise ConfigError("zb-v has two chunks a rank", where="schedule", remedy="Set vpp to 2")
    if chunks > 1 and schedule not in (ScheduleKind.INTERLEAVED, ScheduleKind.ZB_V):
        raise ConfigError(f"{schedule} has one chunk a rank", where="schedule")


def _gpipe(microbatches: int) -> Order:
    forward = [Action(FORWARD, k) for k in range(microbatches)]
    return (*forward, *(Action(BACKWARD, k) for k in range(microbatches)))


def _one_f_one_b(rank: int, ranks: int, microbatches: int) -> Order:
    warmup = min(ranks - rank - 1, microbatches)
    forward = [Action(FORWARD, k) for k in range(microbatches)]
    backward = [Action(BACKWARD, k) for k in range(microbatches)]
    return _alternate(forward, backward, warmup)


def _alternate(forward: list[Action], backward: list[Action], warmup: int) -> Order:
    """Return the fill, then forward and backward in turn, then the drain."""
    steady = len(forward) - warmup
    actions = forward[:warmup]
    for k in range(steady):
        actions += [forward[warmup + k], backward[k]]
    return (*actions, *backward[steady:])


def _interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> Order:
    rounds = _rounds(microbatches, ranks)
    forward = [Action(FORWARD, k, c) for own in rounds for c in range(chunks) for k in own]
    backward = [
        Action(BACKWARD, k, c) for own in rounds for c in reversed(range(chunks)) for k in own
    ]
    widest = max(len(own) for own in rounds)
    warmup = 2 * (ranks - rank - 1) + (chunks - 1) * widest
    return _alternate(forward, backward, min(warmup, len(forward)))


def _rounds(microbatches: int, ranks: int) -> list[range]:
    """Return the microbatches in rounds of at least ``ranks`` each, or in one round."""
    count = max(1, microbatches // ranks)
    borders = [round_ * microbatches // count for round_ in range(count + 1)]
    return [range(low, high) for low, high in pairwise(borders)]


def _zb_h1(rank: int, ranks: int, microbatches: int) -> Order:
    warmup = min(ranks - rank - 1, microbatches)
    actions = [Action(FORWARD, k) for k in range(warmup)]
    for k in range(microbatches):
        if warmup + k < microbatches:
            actions.append(Action(FORWARD, warmup + k))
        actions.append(Action(INPUT, k))
        if k >= rank:
            actions.append(Action(WEIGHT, k - rank))
    done = max(microbatches - rank, 0)
    return (*actions, *(Action(WEIGHT, k) for k in range(done, microbatches)))


def _zb_v(rank: int, ranks: int, microbatches: int) -> Order:
    """Return the order of ZB-V; it is laid out for 2p - 1 microbatches or more.

    With fewer, the passes of those that do not exist are left out of that layout.
    """
    row = _VRow(max(microbatches, 2 * ranks - 1))
    for _ in range(2 * (ranks - rank) - 1):
        row.add(FORWARD, 0)
    for _ in range(rank):
        row.add(FORWARD, 1)
        row.add(FORWARD, 0)
    for _ in range(ranks - rank):
        row.add(FORWARD, 1)
        row.add_backward(1)
    while row.has(FORWARD, 1) or row.has(FORWARD, 0):
        row.add(FORWARD, 0)
        row.add_backward(0)
        row.add(FORWARD, 1)
        row.add_backward(1)
    for _ in range(rank):
        row.add(INPUT, 0)
        row.add(INPUT, 1)
    for _ in range(ranks - rank):
        row.add_backward(0)
    for chunk in (1, 0):
        while row.has(WEIGHT, chunk):
            row.add(WEIGHT, chunk)
    return tuple(action for action in row.actions if action.microbatch < microbatches)


class _VRow:
    """The growing order of one rank: every pass takes the next microbatch of its kind."""

    def __init__(self, microbatches: int) -> None:
        self.actions: list[Action] = []
        self._microbatches = microbatches
        self._next: dict[tuple[SpanKind, int], int] = {}

    def has(self, kind: SpanKind, chunk: int) -> bool:
        """Return whether a microbatch is left for this pass."""
        return self._next.get((kind, chunk), 0) < self._microbatches

    def add(self, kind: SpanKind, chunk: int) -> None:
        """Append the next pass of a kind, if one is left."""
        if self.has(kind, chunk):
            at = self._next.get((kind, chunk), 0)
            self._next[kind, chunk] = at + 1
            self.actions.append(Action(kind, at, chunk))

    def add_backward(self, chunk: int) -> None:
        """Append both halves of the next backward pass."""
        self.add(INPUT, chunk)
        self.add(WEIGHT, chunk)

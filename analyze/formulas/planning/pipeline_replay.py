"""What a schedule costs before anything runs: idle time and held activations, by replay.

A pass starts when its rank has done the pass before it and the neighbour stage has sent
what it needs; sending takes no time. Steps follow each other without a barrier, as they
do in the trainer, so a schedule whose ranks end early in turn starts early in turn too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..schedules.passes import Order, Pass, PassKind

_STEPS = 3
"""Enough for one step between two others."""

FORWARD_COST = 1
COSTS = {
    PassKind.FORWARD: FORWARD_COST,
    PassKind.BACKWARD: 2,
    PassKind.INPUT: 1,
    PassKind.WEIGHT: 1,
}
"""Cost of a pass in forwards: two matrix products backward (input, weight) for one forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """One step of a pipeline, in the unit of the stage costs."""

    step: float
    """From the end of one step to the end of the next."""
    ideal: float
    """What the step would take if the work of all ranks were equal and none ever waited."""

    @property
    def idle_over_ideal(self) -> float:
        """Return (step - ideal) / ideal, which is (p - 1) / m for 1F1B with equal stages."""
        return self.step / self.ideal - 1

    @property
    def idle_frac(self) -> float:
        """Return (step - ideal) / step."""
        return 1 - self.ideal / self.step


def replay(orders: Sequence[Order], stage_cost: Callable[[int], float]) -> StepCost:
    """Return what a step costs in the long run.

    Args:
        orders: Of every pipeline rank.
        stage_cost: Returns what one forward through a stage costs; the other passes
            cost ``COSTS`` times as much.

    Raises:
        ValueError: The ranks would wait for each other for ever.
    """
    ends = _Ends(orders)
    ranks = [_Rank(order, stage_cost) for order in orders]
    while any([rank.advance(ends) for rank in ranks]):  # noqa: C419 - every rank must advance
        pass
    if any(len(rank.step_ends) < _STEPS for rank in ranks):
        raise ValueError("the ranks of this order wait for each other for ever")
    before_last, last = (max(rank.step_ends[step] for rank in ranks) for step in (-2, -1))
    return StepCost(step=last - before_last, ideal=sum(rank.work for rank in ranks) / len(ranks))


class _Ends:
    """When forwards and the inputs' halves of backwards end, by stage and microbatch."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self.stages = 1 + max(one.stage for order in orders for one in order)
        self.microbatches = 1 + max(one.microbatch for order in orders for one in order)
        rows = range(self.stages)
        self.forward: list[dict[int, float]] = [{} for _ in rows]
        self.backward: list[dict[int, float]] = [{} for _ in rows]

    def input_ready(self, one: Pass, microbatch: int) -> float | None:
        """Return when the input of a pass is there; None while nobody has made it."""
        if one.kind is PassKind.FORWARD:
            return 0.0 if one.stage == 0 else self.forward[one.stage - 1].get(microbatch)
        if one.kind is PassKind.WEIGHT:
            # Its own rank did the inputs' half before.
            return 0.0
        if one.stage == self.stages - 1:
            return self.forward[one.stage].get(microbatch)
        return self.backward[one.stage + 1].get(microbatch)


class _Rank:
    """One rank that works through its order, step after step."""

    def __init__(self, order: Order, stage_cost: Callable[[int], float]) -> None:
        self._order = [(one, COSTS[one.kind] * stage_cost(one.stage)) for one in order]
        self._at = 0
        self._now = 0.0
        self.work = sum(cost for _, cost in self._order)
        self.step_ends: list[float] = []

    def advance(self, ends: _Ends) -> bool:
        """Do passes until one has no input yet; return whether any was done."""
        begin = (len(self.step_ends), self._at)
        while len(self.step_ends) < _STEPS:
            one, cost = self._order[self._at]
            microbatch = one.microbatch + len(self.step_ends) * ends.microbatches
            ready = ends.input_ready(one, microbatch)
            if ready is None:
                break
            self._now = max(self._now, ready) + cost
            if one.kind is PassKind.FORWARD:
                ends.forward[one.stage][microbatch] = self._now
            elif one.kind is not PassKind.WEIGHT:
                ends.backward[one.stage][microbatch] = self._now
            self._at += 1
            if self._at == len(self._order):
                self._at = 0
                self.step_ends.append(self._now)
        return (len(self.step_ends), self._at) != begin


def held_peak(order: Order, stage_size: Callable[[int], float]) -> float:
    """Return the most that a rank holds at once for backwards to come.

    A forward keeps a stage's activations until its whole backward, or its weights'
    half, is over.

    Args:
        order: Of one rank.
        stage_size: Returns what one microbatch leaves on a stage.
    """
    held = peak = 0.0
    for one in order:
        if one.kind is PassKind.FORWARD:
            held += stage_size(one.stage)
            peak = max(peak, held)
        elif one.kind in (PassKind.BACKWARD, PassKind.WEIGHT):
            held -= stage_size(one.stage)
    return peak

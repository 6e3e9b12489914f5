"""A job as factors of its passes, so that each fault can be taken away and the rest stays as it is."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial

import numpy as np
import numpy.typing as npt
from tests.truth.foreign.program import BACKWARD, FORWARD, Item, Shape, program
from tests.truth.foreign.simulate import Timeline, Times, simulate

DIRECTIONS = (FORWARD, BACKWARD)


@dataclass(frozen=True, slots=True, eq=False)
class SlowRank:
    """A rank whose passes take ``by_step`` (shape: steps) times as long; 1 where it is healthy."""

    dp: int
    stage: int
    by_step: Times


@dataclass(frozen=True, slots=True, eq=False)
class UnequalData:
    """Microbatches of unequal work (shape: microbatch, replica, step; mean 1), alike on all stages."""

    work: Times


@dataclass(frozen=True, slots=True, eq=False)
class HeavyStage:
    """A stage with more to do than the mean; repaired, its excess is on the light stages."""

    stage: int


@dataclass(frozen=True, slots=True, eq=False)
class UnevenStages:
    """All that stages differ by; repaired, each has the mean work."""


Fault = SlowRank | UnequalData | HeavyStage | UnevenStages


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """All that decides when things happen.

    Attributes:
        centres: Seconds of a pass by stage, forward (row 0) and backward (row 1).
        jitter: Factor of each pass, by stage: item, replica, step; 1 for other items.
        wires: Seconds of all that is no pass, after its last member begins; 0 for passes.
        gaps: Seconds from the end of the item before to the begin.
        faults: What takes longer than it has to.
    """

    shape: Shape
    centres: npt.NDArray[np.float64]
    jitter: tuple[Times, ...]
    wires: tuple[Times, ...]
    gaps: tuple[Times, ...]
    faults: tuple[Fault, ...] = ()

    def programs(self) -> list[tuple[Item, ...]]:
        """Return the program of each stage."""
        return [program(self.shape, stage) for stage in range(self.shape.pp)]

    def timeline(self, repaired: Collection[Fault] = ()) -> Timeline:
        """Return when everything happens with these faults taken away."""
        programs = self.programs()
        left = [fault for fault in self.faults if fault not in repaired]
        centres = self.centres
        for fault in repaired:
            if isinstance(fault, HeavyStage):
                centres = levelled(centres, fault.stage)
            elif isinstance(fault, UnevenStages):
                centres = np.broadcast_to(centres.mean(axis=1, keepdims=True), centres.shape)
        lengths = [
            self._lengths(stage, items, centres[:, stage], left)
            for stage, items in enumerate(programs)
        ]
        return simulate(programs, self.gaps, lengths)

    def _lengths(
        self, stage: int, items: Sequence[Item], centre: Times, left: Sequence[Fault]
    ) -> Times:
        passes = [i for i, item in enumerate(items) if item.is_pass]
        lengths = self.wires[stage].copy()
        base = np.array([centre[DIRECTIONS.index(items[i].name)] for i in passes])
        work = base[:, None, None] * self.jitter[stage][passes]
        for fault in left:
            if isinstance(fault, UnequalData):
                work = work * fault.work[[items[i].microbatch for i in passes]]
            elif isinstance(fault, SlowRank) and fault.stage == stage:
                work[:, fault.dp] *= fault.by_step
        lengths[passes] = work
        return lengths

    def step_s(self, repaired: Collection[Fault] = ()) -> float:
        """Return the mean length of a step with these faults taken away."""
        return float(self.timeline(repaired).step_s().mean())

    def gain(self, fault: Fault) -> float:
        """Return what taking away a fault alone returns, as a part of the step."""
        now = self.step_s()
        return (now - self.step_s([fault])) / now

    def shares(self) -> dict[Fault, float]:
        """Return the Shapley value of each fault (Shapley 1953), as a part of the step.

        Heavy stages share their part: all that stages differ by is one player.
        """
        players = [fault for fault in self.faults if not isinstance(fault, HeavyStage)]
        players.append(UnevenStages())
        count = len(players)
        now = self.step_s()
        saved = {
            chosen: now - self.step_s([players[i] for i in chosen])
            for size in range(count + 1)
            for chosen in combinations(range(count), size)
        }
        shares = dict.fromkeys(players, 0.0)
        for i, player in enumerate(players):
            for chosen in (c for c in saved if i not in c):
                weight = factorial(len(chosen)) * factorial(count - len(chosen) - 1)
                joined = tuple(sorted((*chosen, i)))
                change = weight * (saved[joined] - saved[chosen])
                shares[player] += change / factorial(count) / now
        return shares


def levelled(centres: npt.NDArray[np.float64], stage: int) -> npt.NDArray[np.float64]:
    """Return the centres with the excess of a stage over the mean on the lighter ones.

    It goes where stages are below the mean, in proportion to how far; a stage that is no
    heavier than the mean keeps what it has.
    """
    mean = centres.mean(axis=1)
    excess = np.maximum(centres[:, stage] - mean, 0)
    room = np.maximum(mean[:, None] - centres, 0)
    total = room.sum(axis=1, keepdims=True)
    moved = centres + excess[:, None] * np.divide(room, total, where=total > 0, out=room * 0)
    moved[:, stage] -= excess
    return moved

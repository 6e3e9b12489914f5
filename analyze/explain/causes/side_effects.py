"""What else is faster while a cause is there, and is not any more once it is repaired.

A rank that is late leaves cores, caches and the network to others; ranks that no longer fall together
transfer faster. No duration of such a step tells, so that its replay promises too much. But a cause that
comes and goes leaves steps without it, and with all causes repaired the steps with it are as long as
those. Where they are shorter, a repair takes the difference back at the end of each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...align.steps.paired_steps import MIN_RUNS, MIN_STEPS, clipped, longer_beyond_chance
from ...align.steps.windows import StepWindows
from ...tables.arrays import BoolArray, FloatArray
from ..replay.effect_folding import EdgeEffect
from ..replay.marks import END
from ..replay.program import Program
from ..replay.scenarios import step_lengths
from .effects import Work
from .overlaps import Overlap, kept_overlaps
from .shapley_player import Player, Union

MOST_WITHOUT, LEAST_WITH = 0.25, 0.5
"""A step is without a cause up to that share of what it costs in the steps with it, and with it from that
share on."""
MOST_BETWEEN = 0.1
"""Share of the steps that may lie between; they are neither, and a few bad steps tell nothing."""
LEAST_WITHOUT_ANY = 0.25
"""Share of the steps that several causes must leave without any of them: fewer may all be bad ones."""
MOST_FASTER = 0.5
"""What is faster beyond that share of the cost of a cause has another reason: lighter steps, say."""
ALIKE_TOKENS = 0.02
"""Steps whose tokens differ by more from the median are of another kind."""
_NOISE = frozenset({"jitter", "slow_wire", "sequence_imbalance"})
"""Never repaired here: what else is faster shows in them. Data that differ by chance do not come and go
with a cause."""
_JUDGED = (Union.WORKERS, Union.WIRES)
"""Families whose coming has nothing to do with how long steps are. That of stalls of the host may have,
for a loader is late where steps are short: they are distinguished from the others, and left as they are."""


def with_side_effects(
    program: Program, work: Work, players: list[Player], overlaps: list[Overlap]
) -> list[Player]:
    """Return the players; of those that come and go, with what is faster while they are there.

    Args:
        program: The replay graph.
        work: The recorded work by cell.
        players: All causes.
        overlaps: What two of them have together.
    """
    if len(program.windows.steps) < 2 * MIN_STEPS:
        return players
    steps = _Steps(program)
    found = _separated(
        {
            number: parted
            for number, player in enumerate(players)
            if player.kind not in _NOISE
            and (parted := _come_and_go(steps.sums(player.effect))) is not None
        }
    )
    judged = [number for number in found if players[number].union in _JUDGED]
    if not judged:
        return players
    lengths = _repaired_lengths(program, players, overlaps, judged)
    usual = _usual_steps(work) & _usual_tokens(program.windows)
    for parted in found.values():
        usual &= parted.is_clear
    own_steps = [parted.with_it[usual] for parted in found.values()]
    beyond_chance = longer_beyond_chance(clipped(lengths[usual, 0], own_steps), own_steps)
    if beyond_chance is None:
        return players
    longer = dict(zip(found, beyond_chance, strict=True))
    changed = list(players)
    for place, number in enumerate(judged):
        with_it = found[number].with_it
        cost_ns = float(np.median((lengths[:, place + 1] - lengths[:, 0])[with_it]))
        faster_ns = max(0.0, -longer[number])
        if faster_ns <= MOST_FASTER * cost_ns:
            at_ends = steps.at_ends(with_it, -faster_ns)
            effect = _sum_of(players[number].effect, at_ends)
            relief_ns = faster_ns * float(with_it.mean())
            changed[number] = players[number]._replace(effect=effect, relief_ns=relief_ns)
    return changed


def _repaired_lengths(
    program: Program, players: list[Player], overlaps: list[Overlap], chosen: list[int]
) -> FloatArray:
    """Return the length of every step with all causes repaired, then with all but each chosen one."""
    keep = np.array([[float(own.kind in _NOISE)] for own in players])
    keep = np.repeat(keep, 1 + len(chosen), axis=1)
    keep[chosen, np.arange(len(chosen)) + 1] = 1.0
    effects = [*(own.effect for own in players), *(own.given_back for own in overlaps)]
    return step_lengths(program, effects, np.vstack([keep, kept_overlaps(keep, overlaps)]))


def _usual_steps(work: Work) -> BoolArray:
    """Return which steps are of the most frequent kind by the operations of all ranks."""
    cells = work.cells[["step", "rank", "peer_class"]].drop_duplicates(["step", "rank"])
    table = cells.pivot(index="step", columns="rank", values="peer_class").fillna(-2)
    _, kind, count = np.unique(table.to_numpy(), axis=0, return_inverse=True, return_counts=True)
    return np.asarray(kind.reshape(-1) == count.argmax())


def _usual_tokens(windows: StepWindows) -> BoolArray:
    """Return which steps trained on as many tokens as usual; all where that is not known."""
    tokens = windows.step_tokens()
    if tokens is None:
        return np.ones(len(windows.steps), dtype=bool)
    return np.asarray(np.abs(tokens / np.median(tokens) - 1.0) <= ALIKE_TOKENS)


class _Steps:
    """Where the steps are among the edges of a program."""

    def __init__(self, program: Program) -> None:
        marks = program.marks
        steps, of_mark = np.unique(marks["step"].to_numpy(), return_inverse=True)
        self.count = len(steps)
        self._works, self._waits = len(program.work_edges), len(program.waits)
        self._edges = program.edge_count
        self._of_work = of_mark[program.work_edges]
        self._of_wait = of_mark[program.waits]
        self._is_end = (marks["mark"].to_numpy() == END)[program.work_edges]

    def sums(self, effect: EdgeEffect) -> FloatArray:
        """Return the sum of an effect by step."""
        work = effect.part(0, self._works)
        wire = effect.part(self._edges - self._waits, self._waits)
        of_work = np.bincount(self._of_work[work.edge], work.ns, self.count)
        of_wire = np.bincount(self._of_wait[wire.edge], wire.ns, self.count)
        return np.asarray(of_work + of_wire, dtype=np.float64)

    def at_ends(self, steps: BoolArray, ns: float) -> EdgeEffect:
        """Return the effect of a time before the end of some steps of all ranks."""
        edge = np.flatnonzero(self._is_end & steps[self._of_work]).astype(np.int32)
        return EdgeEffect(edge, np.full(len(edge), ns))


class _Parted(NamedTuple):
    """The steps with a cause that comes and goes, and which are clearly so or clearly not."""

    with_it: BoolArray
    is_clear: BoolArray
    cost_ns: float
    """What it usually costs in the steps with it, over all ranks."""


def _separated(found: dict[int, _Parted]) -> dict[int, _Parted]:
    """Return the causes that leave enough steps without any of them, the most costly ones.

    Of two that take turns, hardly a step is without either, and a few bad ones would be all that both are
    compared with. What costs the least explains the least.
    """
    kept = dict(sorted(found.items(), key=lambda item: item[1].cost_ns, reverse=True))
    while kept:
        without = ~np.any([parted.with_it for parted in kept.values()], axis=0)
        least = MIN_STEPS if len(kept) == 1 else max(MIN_STEPS, LEAST_WITHOUT_ANY * len(without))
        if without.sum() >= least:
            break
        kept.popitem()
    return {number: kept[number] for number in sorted(kept)}


def _come_and_go(cost_ns: FloatArray) -> _Parted | None:
    """Return which steps are with a cause that costs so much in each; None where it does not come and go.

    The steps with it are measured by their median, and found from the largest cost but for the few that
    a pause may have made larger.
    """
    largest = float(np.sort(cost_ns)[-MIN_STEPS])
    if largest <= 0:
        return None
    usual = float(np.median(cost_ns[cost_ns >= LEAST_WITH * largest]))
    with_it, without = cost_ns >= LEAST_WITH * usual, cost_ns <= MOST_WITHOUT * usual
    is_clear = with_it | without
    in_order = with_it[is_clear]
    comes = in_order & ~np.append(False, in_order[:-1])
    enough = min(with_it.sum(), without.sum()) >= MIN_STEPS and comes.sum() >= MIN_RUNS
    if not enough or (~is_clear).sum() > MOST_BETWEEN * len(cost_ns):
        return None
    return _Parted(with_it, is_clear, usual)


def _sum_of(first: EdgeEffect, second: EdgeEffect) -> EdgeEffect:
    edge, place = np.unique(np.concatenate([first.edge, second.edge]), return_inverse=True)
    ns = np.bincount(place, np.concatenate([first.ns, second.ns]), len(edge))
    return EdgeEffect(edge[ns != 0], ns[ns != 0])

"""How likely chance alone makes a rank as late as it is: a test by relabelling the ranks.

If no rank is slow, who is late in a piece of work is chance, and the names of the ranks can be exchanged
within each piece without changing anything. The excess of a rank, which is the sum over pieces of what it
works beyond the mean of its peers and itself, is then a sum of independent draws, one from each piece::

    P(S >= s) <= exp(K(t) - t s)    for each t >= 0,    K(t) = sum over pieces of log mean exp(t d)

with the deviations ``d`` of all ranks of a piece (Chernoff, *Annals of Mathematical Statistics* 1952). The
bound holds for noise of any shape, skewed and heavy-tailed as well, for it is conditional on the values
that occurred; where a rank is the last in each of n pieces it is exact: ranks ** -n.

Pieces are whole steps, and the passes or intervals within them. These are more, and not always independent:
a host that is busy delays all of a step. What the steps of the other ranks vary more than their
pieces would alone (the design effect of Kish, *Survey Sampling* 1965) is the number of pieces that count
as one. Stalls too rare to show on the other ranks do not show it either: therefore a slow rank must also hold
by whole steps, or be late in a fifth of them and in all pieces there, or slower by one factor in all pieces of
its slow steps (``one_factor``), which leaves the chance by steps as doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import BoolArray, FloatArray, IntArray
from .bounds import log_bound, log_bound_of_steps, log_choose, log_evenly_spaced
from .effects import Work
from .one_factor import is_by_one_factor
from .pieces import (
    Pieces,
    Runs,
    clipped,
    design_effect,
    deviations,
    inside_runs,
    kinds_of_steps,
    of_cells,
    of_passes,
    rows_of,
    table_of,
    whole_steps,
)

MAX_CHANCE = 1e-3
"""Of a job without a slow rank to have one found in a window, by relabelling."""
MAX_CHANCE_THERE = 0.02
"""The same in the steps in which a rank seems to be slow, where these lie as by no accident."""
MAX_OF_PIECES, MAX_OF_FEW = 1e-6, 0.3
"""Chances, by pieces and by whole steps, of a rank that is late in a part of a short window, in all pieces."""
MAX_OF_ONE_FACTOR = 0.1
"""Chance by whole steps of a rank that is slower by one factor in all pieces of these."""
FEWEST_LATE, LEAST_OFTEN = 1.9, 0.2
"""Late steps that this takes, and their share: a step or two are a pause."""
MIN_NEEDED = 0.01
"""By this factor at least one rank more must make the chance of those tested as one smaller."""
MOST_TRIED = 16
"""Ranks that are tested in place of one another, the latest ones."""
MOST_TOGETHER = 4
"""Ranks that are tested as one at most."""
MOST_EXCHANGED = 1 << 17
"""Steps of a rank times slow ones, above which the time of these is no evidence."""
SURELY = 1.0 + 1e-6
"""Factor that hides rounding where a rank is the last in every piece."""


class Chance(NamedTuple):
    """What relabelling says of a rank that seems to be slow."""

    by_step: float
    """Chance that exchanging the ranks of whole steps finds one as late, 0..1."""
    explains: bool
    """Whether that, or the same of the pieces of steps, is too likely to call the rank slow."""


_UNTESTED = Chance(1.0, explains=True)


def chance_of_ranks(
    work: Work,
    unequal_ns: FloatArray | None,
    passes: pd.DataFrame,
    candidates: Iterable[int],
    slow_steps: Mapping[int, Runs],
) -> dict[int, Chance]:
    """Return what relabelling says of ranks that seem to be slow; nothing of ranks without peers.

    Each is tested with all others in place. Where chance does not explain the least likely one, it is
    slow and no longer among those that the next one is compared with.

    Args:
        work: The recorded work by cell.
        unequal_ns: What each cell works because of its own microbatch; None if nothing tells.
        passes: Own durations of passes: rank, step, kind, chunk, microbatch, dur_ns; may be empty.
        candidates: Ranks that seem to be slow.
        slow_steps: In which steps each seems to be slow; none: not known, or in all.
    """
    by_class: dict[int, list[int]] = {}
    for rank in candidates:
        by_class.setdefault(work.peer_class[rank], []).append(rank)
    found: dict[int, Chance] = {}
    for own_class, members in by_class.items():
        ranks = np.array(sorted(r for r, own in work.peer_class.items() if own == own_class))
        if own_class >= 0 and len(ranks) > 1:
            tables = [of_cells(work, unequal_ns, ranks), *of_passes(passes, ranks)]
            tables += [clipped(own) for own in tables]
            found |= _one_by_one(tables, members, slow_steps)
    return found


def _one_by_one(
    tables: Sequence[Pieces], members: list[int], slow_steps: Mapping[int, Runs]
) -> dict[int, Chance]:
    """Return the chance of each member, the least likely first, without those found slow before.

    Ranks that are late in turn hide each other: where chance explains each, the two least likely are
    tested as one, and so on, up to half of those present. Not those that are late in the same steps, as
    ranks of a host: these do not hide each other, and are not drawn one by one.
    """
    left, ranks = set(members), tables[0].rank
    present = np.ones(len(ranks), dtype=bool)
    found: dict[int, Chance] = {}
    while left and present.sum() > 1:
        deviation = deviations(tables[0].value, present)
        sums = np.nansum(deviation, axis=0)
        latest = sorted(
            np.flatnonzero(np.isin(ranks, list(left))).tolist(), key=lambda at: -sums[at]
        )
        single = {
            at: _tested(tables, present, np.array([at]), slow_steps.get(int(ranks[at]), ()))
            for at in latest[:MOST_TRIED]
        }
        found |= {int(ranks[at]): own for at, own in single.items()}
        order = sorted(single, key=lambda at: (single[at].explains, single[at].by_step))
        slow, chance = order[:1], single[order[0]]
        if chance.explains:
            slow, chance = _in_turn(tables, present, order, chance, deviation)
        if chance.explains:
            slow, chance = _all_but_the_early(tables, present, sorted(single), chance)
        if chance.explains:
            break
        found |= dict.fromkeys(ranks[slow].tolist(), chance)
        left.difference_update(ranks[slow].tolist())
        present[slow] = False
    return found | {rank: found.get(rank, _UNTESTED) for rank in left}


def _all_but_the_early(
    tables: Sequence[Pieces], present: BoolArray, at: list[int], single: Chance
) -> tuple[list[int], Chance]:
    """Return the ranks that seem to be slow, and the chance that the few others are as early.

    Where most of the ranks are slow, none of them is the last more often than chance makes it.

    Args:
        tables: Pieces of different kinds of the same ranks.
        present: Ranks that are compared.
        at: Positions of those that seem to be slow.
        single: What is said of the latest alone.
    """
    others = np.setdiff1d(np.flatnonzero(present), at)
    if not 0 < len(others) < len(at):
        return at[:1], single
    turned = [own._replace(value=-own.value) for own in tables]
    return at, _tested(turned, present, others, ())


def _in_turn(
    tables: Sequence[Pieces],
    present: BoolArray,
    order: list[int],
    single: Chance,
    deviation: FloatArray,
) -> tuple[list[int], Chance]:
    """Return the ranks that are late in turn, and their chance; that of the first one if none are.

    Args:
        tables: Pieces of different kinds of the same ranks.
        present: Ranks that are compared.
        order: Positions of those that seem to be slow, the least likely first.
        single: What is said of the first one.
        deviation: Of all ranks, by piece.
    """
    before = single
    for together in range(2, min(len(order), int(present.sum()) // 2, MOST_TOGETHER) + 1):
        at = order[:together]
        if _are_late_together(deviation[:, at]):
            break
        chance = _tested(tables, present, np.array(at), ())
        # Else one of them carries it, and the others come along.
        if not chance.explains and chance.by_step <= MIN_NEEDED * before.by_step:
            return at, chance
        before = chance
    return order[:1], single


def _are_late_together(deviation: FloatArray) -> bool:
    """Return whether some ranks are late in the same pieces rather than in turn."""
    known = np.where(np.isfinite(deviation), deviation, 0.0)
    own = (known**2).sum(axis=0)
    return bool((known.sum(axis=1) ** 2).sum() > own.sum()) and deviation.shape[1] > 1


def _tested(
    tables: Sequence[Pieces], present: BoolArray, at: IntArray, runs: Runs, *, is_work: bool = True
) -> Chance:
    """Return the chance of some ranks, by the pieces that speak most against it.

    Args:
        tables: Pieces of different kinds of the same ranks.
        present: Ranks that are compared.
        at: Positions of those that are tested as one.
        runs: In which steps they seem to be slow.
        is_work: Whether the values are work, which a slow device makes longer by one factor.
    """
    chances = [_of_table(pieces, present, at, runs, is_work=is_work) for pieces in tables]
    return min(chances, key=lambda own: (own.explains, own.by_step))


def _of_table(
    pieces: Pieces, present: BoolArray, at: IntArray, runs: Runs, *, is_work: bool
) -> Chance:
    whole = whole_steps(pieces)
    steps, ranks = len(whole.value), int(present.sum())
    by_step = _chance(whole, present, at)
    by_piece = _chance(pieces, present, at)
    # In a short window they must be the last in each step.
    always = exp((1 - steps) * log(max(ranks, 2))) * SURELY
    is_clear = max(by_piece, by_step) <= max(MAX_CHANCE, always)
    # Who is the last in each step may be slow in a part of it: the noise of the other parts is no witness for them.
    is_clear |= by_step <= min(MAX_CHANCE, always) and by_piece <= MAX_CHANCE_THERE
    is_clear |= (
        by_piece <= MAX_OF_PIECES and by_step <= MAX_OF_FEW and _is_often(whole, present, at)
    )
    if is_work and by_step <= MAX_OF_ONE_FACTOR:
        is_clear |= is_by_one_factor(pieces, present, at)
    chance = Chance(by_step, explains=not is_clear)
    if not is_clear:
        chance = _in_a_kind_of_step(pieces, whole, present, at, chance)
    if not chance.explains or not runs:
        return chance
    there = _chance(inside_runs(whole, runs), present, at)
    by_time = _by_time(whole, present, at, runs)
    if there > MAX_CHANCE_THERE or by_time > MAX_CHANCE:
        return chance
    return Chance(max(there, by_time), explains=False)


def _in_a_kind_of_step(
    pieces: Pieces, whole: Pieces, present: BoolArray, at: IntArray, over_all: Chance
) -> Chance:
    """Return the chance in the kind of step that speaks most against it, times the number of kinds.

    What a step consists of does not depend on who is late in it, so the steps of a kind are a window. The
    chance over all steps where there is one kind, or none speaks against it.
    """
    kind = kinds_of_steps(pieces)
    numbers, counts = np.unique(kind, return_counts=True)
    if len(numbers) < 2:
        return over_all
    ranks, found = max(int(present.sum()), 2), over_all
    for number, steps in zip(numbers.tolist(), counts.tolist(), strict=True):
        least = exp((1 - steps) * log(ranks)) * SURELY
        if least * len(numbers) > MAX_CHANCE_THERE:
            continue
        chance = _chance(rows_of(whole, kind == number), present, at)
        own = Chance(min(1.0, chance * len(numbers)), explains=False)
        if chance <= max(MAX_CHANCE / len(numbers), least) and own.by_step <= MAX_CHANCE_THERE:
            found = own if found.explains else min(found, own)
    return found


def _is_often(whole: Pieces, present: BoolArray, at: IntArray) -> bool:
    """Return whether ranks are late in more than single steps: by the steps that carry their excess."""
    late = np.clip(np.nan_to_num(deviations(whole.value, present)[:, at]).sum(axis=1), 0.0, None)
    carrying = late.sum() ** 2 / max(float((late**2).sum()), 1e-300)
    return bool(carrying >= max(FEWEST_LATE, LEAST_OFTEN * len(late)))


def _by_time(whole: Pieces, present: BoolArray, at: IntArray, runs: Runs) -> float:
    """Return the chance that a rank's late steps lie as its slow ones do: together, or evenly spaced.

    What exchanging the steps of the rank finds, times the number of sets that would have counted as so
    orderly: those with as many ends of runs, or every set of evenly spaced steps.
    """
    own = deviations(whole.value, present)[:, at[0]]
    seen = np.isfinite(own)
    own, step = own[seen], whole.step[seen]
    inside = np.zeros(len(own), dtype=bool)
    for low, high in runs:
        inside |= (step >= low) & (step <= high)
    count = int(inside.sum())
    if not 0 < count < len(own) or count * len(own) > MOST_EXCHANGED:
        return 1.0
    ends = int((inside[1:] != inside[:-1]).sum())
    choices = log(2.0) + log_choose(len(own) - 1, ends)
    if len(set(np.diff(np.flatnonzero(inside)).tolist())) == 1:
        choices = min(choices, log_evenly_spaced(len(own)))
    # Either order would have done: two families of sets are tried.
    return exp(min(0.0, log_bound_of_steps(own, inside) + choices + log(2.0)))


def chance_of_arrivals(peer_class: Mapping[int, int], arrivals: pd.DataFrame, rank: int) -> Chance:
    """Return what relabelling says of a rank that arrives last: at all meetings with its peers, by how much.

    Args:
        peer_class: Class of each rank.
        arrivals: rank, step, join, late_ns of each member of an operation that holds all of them.
        rank: The rank.
    """
    ranks = np.array(sorted(r for r, own in peer_class.items() if own == peer_class[rank]))
    own = arrivals[arrivals["rank"].isin(ranks)]
    if own.empty or len(ranks) < 2:
        return _UNTESTED
    names = ("rank", "step", "join", "late_ns")
    table = table_of(ranks, *(own[name].to_numpy() for name in names))
    present, at = np.ones(len(ranks), dtype=bool), np.searchsorted(ranks, [rank])
    return _tested([table, clipped(table)], present, at, (), is_work=False)


def _chance(pieces: Pieces, present: BoolArray, at: IntArray) -> float:
    """Return the chance that some of the ranks present have an excess as large as those at a position."""
    drawn = deviations(pieces.value, present)[:, present]
    own = deviations(pieces.value, present)[:, at]
    rows = np.isfinite(own).all(axis=1)
    if not rows.any():
        return 1.0
    logs = log_bound(drawn[rows], float(own[rows].sum()), len(at))
    logs /= design_effect(pieces, present, at)
    return exp(min(0.0, logs + log_choose(int(present.sum()), len(at))))

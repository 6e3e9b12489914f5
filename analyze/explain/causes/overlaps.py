"""Work that several causes have together: a slow rank on a heavy stage, a long sequence on either.

A device that is slow by a factor takes that factor longer for the extra work of its stage and of its
microbatches too, and one with a slow clock for what else makes it slow; a heavy stage takes its own
factor longer for a long sequence. That part of the time is gone whichever of them is repaired, so it
belongs to each: every cause has it alone, and together they have it once::

    w = centre * stage * sequence * rank
    removed with a set of causes: w - w / (the factors of the set), by inclusion and exclusion

A rank that loses a time for each pass, whatever the pass is, has no such part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray, IntArray, combined
from ...tables.centres import median_of_others
from ..replay.effect_folding import EdgeEffect
from .effects import Work
from .passes import Passes
from .shapley_player import Player
from .workers import OTHERS, Suspect

_OF_WORK = ("stage_imbalance", "straggler_rank", OTHERS, "sequence_imbalance")
"""Kinds whose time on a slow rank is longer by the factor that the rank is slow by."""
MIN_SPREAD = 0.1
"""Least deviation of a rank's kinds of passes, over their mean, that can show what is proportional."""
MAX_REST = 0.25
"""Most of the squares of what a rank loses by kind of pass that a factor may leave unexplained."""


class Overlap(NamedTuple):
    """What some causes have together."""

    players: tuple[int, ...]
    """Their positions among the players."""
    given_back: EdgeEffect
    """What all of them have of the edges of the program, with the sign that counts it once if all are
    repaired: negative for two of them."""


def with_overlaps(
    work: Work,
    longer: Sequence[FloatArray],
    players: list[Player],
    by_sequence: FloatArray | None = None,
) -> tuple[list[Player], list[Overlap]]:
    """Return the players with what they cost on slow ranks, and what they have together.

    Args:
        work: The recorded work by cell.
        longer: By which share each cell takes longer by a factor because of each of the
            first players.
        players: All players; what a stage costs is of the recorded microbatches.
        by_sequence: Which share of each cell's work its own microbatch is beyond the mean one; None
            where they are alike.
    """
    changed, overlaps = list(players), _of_stages_and_data(work, players, by_sequence)
    for first, share in enumerate(longer):
        if not share.any():
            continue
        for own in [own for own in overlaps if first not in own.players]:
            lost = _scaled(own.given_back, share[work.cell[own.given_back.edge]])
            if not lost.is_nothing:
                place = overlaps.index(own)
                overlaps[place] = own._replace(given_back=_sum_of(own.given_back, lost))
                overlaps.append(Overlap((first, *own.players), _scaled(lost, -1.0)))
        for second, player in enumerate(players):
            if second <= first or player.kind not in _OF_WORK:
                continue
            shared = _scaled(player.effect, share[work.cell[player.effect.edge]])
            if not shared.is_nothing:
                grown = _sum_of(changed[second].effect, shared)
                changed[second] = changed[second]._replace(effect=grown)
                overlaps.append(Overlap((first, second), _scaled(shared, -1.0)))
    return changed, overlaps


def _of_stages_and_data(
    work: Work, players: list[Player], by_sequence: FloatArray | None
) -> list[Overlap]:
    """Return what unequal stages and unequal data have together."""
    data = [n for n, player in enumerate(players) if player.kind == "sequence_imbalance"]
    if by_sequence is None or not data:
        return []
    found = []
    for number, player in enumerate(players):
        if player.kind == "stage_imbalance":
            share = -by_sequence[work.cell[player.effect.edge]]
            shared = _scaled(player.effect, share)
            if not shared.is_nothing:
                found.append(Overlap((number, data[0]), shared))
    return found


def _scaled(effect: EdgeEffect, by: FloatArray | float) -> EdgeEffect:
    """Return an effect times a number an edge, without the edges where nothing is left."""
    ns = effect.ns * by
    touched = np.flatnonzero(ns)
    return EdgeEffect(effect.edge[touched], ns[touched])


def _sum_of(first: EdgeEffect, second: EdgeEffect) -> EdgeEffect:
    """Return two effects as one, of which the second touches no edge that the first does not."""
    ns = first.ns.copy()
    ns[np.searchsorted(first.edge, second.edge)] += second.ns
    return EdgeEffect(first.edge, ns)


def longer_by_factor(
    work: Work, reference: FloatArray, suspects: list[Suspect], passes: pd.Series
) -> list[FloatArray]:
    """Return, for each suspect, by which share its ranks work longer in a step; 0 if by a time.

    Args:
        work: The recorded work by cell.
        reference: That work with the slow ranks repaired, ns per cell.
        suspects: The slow ranks.
        passes: As ``mean_passes`` gives them.
    """
    longer = _longer_by(work, reference)
    rank = work.cells["rank"].to_numpy()
    by_time = _slow_by_a_time(work, passes)
    slow = [np.setdiff1d(own.ranks, by_time) for own in suspects]
    return [np.where(np.isin(rank, ranks), longer, 0.0) for ranks in slow]


def mean_passes(passes: Passes) -> pd.Series:
    """Return the mean computing of a pass by rank, direction and chunk, ns; empty without passes."""
    spans, pieces = passes.spans, passes.pieces
    compute = np.bincount(pieces["span"], weights=pieces["dur_ns"], minlength=len(spans))
    # Not the other columns, which are large.
    keys = [spans[name] for name in ("rank", "is_forward", "chunk")]
    mean: pd.Series[float] = (
        pd.Series(compute, spans.index, name="compute_ns").groupby(keys, observed=True).mean()
    )
    return mean


def kept_overlaps(keep: FloatArray, overlaps: Sequence[Overlap]) -> FloatArray:
    """Return how much of each overlap is not to be counted once, ``(overlaps, lanes)``.

    Args:
        keep: Which players are left in each lane, 0..1, ``(players, lanes)``.
        overlaps: What players have together. As an effect of its own that of two is negative: where
            both are repaired it is given back, because both have taken it.
    """
    rows = [1.0 - np.prod(1.0 - keep[list(own.players)], axis=0) for own in overlaps]
    return np.array(rows).reshape(len(overlaps), keep.shape[1])


def _longer_by(work: Work, reference: FloatArray) -> FloatArray:
    """Return by which share each cell's rank works longer in its step than the reference says.

    In its passes, and in what else it does: a slow device need not launch or wait for data slower.
    """
    names = ("rank", "step", "is_pass")
    place = combined(*(work.cells[name].to_numpy().astype(np.int64) for name in names))
    place = np.asarray(pd.factorize(place)[0], dtype=np.int64)
    own, usual = (np.bincount(place, ns) for ns in (work.cells["work_ns"].to_numpy(), reference))
    with np.errstate(invalid="ignore", divide="ignore"):
        longer = (own / usual - 1.0)[place]
    return np.where(np.isfinite(longer), longer, 0.0)


def _slow_by_a_time(work: Work, passes: pd.Series) -> IntArray:
    """Return the ranks that take a time longer for each of their passes, rather than a factor.

    Both are fitted to what a rank's kinds of passes, which differ in length, take longer than
    the median of those of its peers. Where nothing shows the difference a factor is taken, which
    is how slow devices are slow, unless it leaves most unexplained: what lengthens one kind alone
    is no slow device.
    """
    table = passes.rename("own_ns").reset_index()
    table["peer_class"] = table["rank"].map(work.peer_class).fillna(-1)
    peer_class = np.asarray(table["peer_class"], dtype=np.int64)
    kind = np.asarray(table.groupby(["is_forward", "chunk"]).ngroup(), dtype=np.int64)
    table["usual"] = median_of_others(table["own_ns"].to_numpy(np.float64), peer_class, kind)
    table = table[table["usual"].notna() & (table["peer_class"] >= 0)]
    excess, by_rank = table["own_ns"] - table["usual"], table["rank"]
    usual = table["usual"].groupby(by_rank)
    factor = (excess * table["usual"]).groupby(by_rank).sum() / _squares(table["usual"], by_rank)
    of_factor = excess - by_rank.map(factor) * table["usual"]
    of_time = excess - excess.groupby(by_rank).transform("mean")
    differ = (usual.size() >= 2) & (usual.std(ddof=0) >= MIN_SPREAD * usual.mean())
    rest = _squares(of_factor, by_rank)
    fits_time = differ & (_squares(of_time, by_rank) < rest)
    unfit = rest > MAX_REST * _squares(excess, by_rank)
    return np.asarray(differ.index[fits_time | unfit], dtype=np.int64)


def _squares(values: pd.Series, by: pd.Series) -> pd.Series:
    return (values**2).groupby(by).sum()

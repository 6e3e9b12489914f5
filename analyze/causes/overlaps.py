"""Work that two causes have together: a slow rank on a stage, or with data, unlike the others'.

A device that is slow by a factor takes that factor longer for the extra work of its
stage and of its microbatches too, and one with a slow clock for what else makes it slow. That part of the time is
gone whichever of the two is repaired, so it belongs to both: each cause has it alone, and
together they have it once. A rank that loses a time for each pass, whatever the pass is,
has no such part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..arrays import FloatArray, IntArray
from ..capture.trace import Trace
from ..centres import median_of_others
from ..ledger.build import Ledger
from ..replay.edge_effect import EdgeEffect
from ..replay.program import Program
from ..steps.time_lookup import microbatch_spans
from .effects import Work
from .passes import computing_pieces
from .player import Player
from .workers import OTHERS, Suspect

_OF_WORK = ("stage_imbalance", "straggler_rank", OTHERS, "sequence_imbalance")
"""Kinds whose time on a slow rank is longer by the factor that the rank is slow by."""
MIN_SPREAD = 0.1
"""Least deviation of a rank's kinds of passes, over their mean, that can show what is proportional."""
MAX_REST = 0.25
"""Most of the squares of what a rank loses by kind of pass that a factor may leave unexplained."""


class Overlap(NamedTuple):
    """What two causes have together."""

    first: int
    """Position of one player."""
    second: int
    """Position of the other."""
    given_back: EdgeEffect
    """What both have of the edges of the program, negative: it counts once if both are repaired."""


def with_overlaps(
    work: Work, longer: Sequence[FloatArray], players: list[Player]
) -> tuple[list[Player], list[Overlap]]:
    """Return the players with what they cost on slow ranks, and what they share with these.

    Args:
        work: The recorded work by cell.
        longer: By which share each cell takes longer by a factor because of each of the
            first players.
        players: All players.
    """
    changed, overlaps = list(players), []
    for first, share in enumerate(longer):
        if not share.any():
            continue
        for second, player in enumerate(players):
            if second <= first or player.kind not in _OF_WORK:
                continue
            shared = player.effect.ns * share[work.cell[player.effect.edge]]
            touched = np.flatnonzero(shared)
            if len(touched):
                grown = changed[second].effect.ns + shared
                effect = EdgeEffect(player.effect.edge, grown)
                changed[second] = player._replace(effect=effect)
                overlaps.append(
                    Overlap(
                        first, second, EdgeEffect(player.effect.edge[touched], -shared[touched])
                    )
                )
    return changed, overlaps


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


def mean_passes(trace: Trace, program: Program, ledger: Ledger) -> pd.Series:
    """Return the mean computing of a pass by rank, kind and chunk, ns; empty without passes."""
    spans = microbatch_spans(trace, program.windows)
    pieces = computing_pieces(spans, ledger)
    compute = np.bincount(pieces["span"], weights=pieces["dur_ns"], minlength=len(spans))
    spans = spans.assign(compute_ns=compute)
    mean: pd.Series[float] = spans.groupby(["rank", "kind", "chunk"], observed=True)[
        "compute_ns"
    ].mean()
    return mean


def kept_overlaps(keep: FloatArray, overlaps: list[Overlap]) -> FloatArray:
    """Return how much of each overlap is not to be counted once, ``(overlaps, lanes)``.

    Args:
        keep: Which players are left in each lane, 0..1, ``(players, lanes)``.
        overlaps: What players have together. As an effect of its own each is negative: where
            both players are repaired it is given back, because both have taken it.
    """
    rows = [1.0 - (1.0 - keep[own.first]) * (1.0 - keep[own.second]) for own in overlaps]
    return np.array(rows).reshape(len(overlaps), keep.shape[1])


def _longer_by(work: Work, reference: FloatArray) -> FloatArray:
    """Return by which share each cell's rank works longer in its step than the reference says."""
    cells = work.cells[["rank", "step", "work_ns"]].assign(reference=reference)
    sums = cells.groupby(["rank", "step"])[["work_ns", "reference"]].transform("sum")
    with np.errstate(invalid="ignore", divide="ignore"):
        longer = (sums["work_ns"] / sums["reference"] - 1.0).to_numpy(np.float64)
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
    kind = np.asarray(table.groupby(["kind", "chunk"], observed=True).ngroup(), dtype=np.int64)
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

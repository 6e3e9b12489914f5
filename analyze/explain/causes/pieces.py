"""Pieces of work of ranks that are each other's peers: what relabelling exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import BoolArray, FloatArray, IntArray, combined
from .effects import Work

MOST_VALUES = 1 << 21
"""With more, whole steps are exchanged: they are enough then."""
MIN_STEPS = 4
"""Steps that show how far the noise of pieces goes together."""
FAR = 5.0
"""Times the median distance from the others, beyond which a piece counts as that far."""

Runs = Sequence[tuple[int, int]]
"""First and last step of each run of steps."""


class Pieces(NamedTuple):
    """Work of ranks that are each other's peers."""

    rank: IntArray
    step: IntArray
    """Step of each piece; rising."""
    kind: IntArray
    """Position of each piece in its step."""
    value: FloatArray
    """``(pieces, ranks)``, ns; NaN where a rank has no such piece."""


def of_cells(work: Work, unequal_ns: FloatArray | None, ranks: IntArray) -> Pieces:
    """Return the work of some ranks between issues of communication."""
    names = ("rank", "step", "interval", "peer_class", "alike", "work_ns")
    rank, step, kind, peers, alike, value = (work.cells[name].to_numpy() for name in names)
    value = value if unequal_ns is None else value - unequal_ns
    rows = np.flatnonzero((peers >= 0) & np.isin(rank, ranks))
    # Those in which nobody works are pieces, too.
    count = alike[rows].astype(np.int64)
    rows, number = np.repeat(rows, count), np.arange(count.sum())
    number -= np.repeat(np.cumsum(count) - count, count)
    # Ranks that are alike in their usual steps may be unlike in some.
    kind = combined(peers[rows], kind[rows], number)
    return table_of(ranks, rank[rows], step[rows], kind, value[rows])


def of_passes(passes: pd.DataFrame, ranks: IntArray) -> Iterator[Pieces]:
    """Yield the passes of some ranks, where there are any."""
    own = passes[passes["rank"].isin(ranks)] if len(passes) else passes
    if len(own) and own["rank"].nunique() == len(ranks):
        kind = np.asarray(own.groupby(["kind", "chunk", "microbatch"]).ngroup(), dtype=np.int64)
        rank, step, value = (own[name].to_numpy() for name in ("rank", "step", "dur_ns"))
        yield table_of(ranks, rank, step, kind, value.astype(np.float64))


def table_of(
    ranks: IntArray, rank: IntArray, step: IntArray, kind: IntArray, value: FloatArray
) -> Pieces:
    """Return values as a table of pieces (rows, by step) and ranks; whole steps if they are too many."""
    if len(value) > MOST_VALUES:
        kind = np.zeros_like(kind)
    unit, piece = np.unique(combined(step, kind), return_inverse=True)
    size = len(unit) * len(ranks)
    cell = piece * len(ranks) + np.searchsorted(ranks, rank)
    table = np.where(np.bincount(cell, minlength=size) > 0, np.bincount(cell, value, size), np.nan)
    first = np.zeros(len(unit), np.int64)
    first[piece] = np.arange(len(piece))
    return Pieces(ranks, step[first], kind[first], table.reshape(len(unit), len(ranks)))


def clipped(pieces: Pieces) -> Pieces:
    """Return the same with no piece far from the others: a few huge delays hide a rank that is always late."""
    middle = np.nanmedian(pieces.value, axis=1, keepdims=True)
    beyond = pieces.value - middle
    far = np.abs(beyond[np.isfinite(beyond) & (beyond != 0)])
    reach = FAR * float(np.median(far)) if len(far) else 0.0
    return pieces._replace(value=middle + np.clip(beyond, -reach, reach))


def inside_runs(pieces: Pieces, runs: Runs) -> Pieces:
    """Return the pieces of some steps."""
    rows = np.zeros(len(pieces.step), dtype=bool)
    for low, high in runs:
        rows |= (pieces.step >= low) & (pieces.step <= high)
    return rows_of(pieces, rows)


def rows_of(pieces: Pieces, rows: BoolArray) -> Pieces:
    """Return some of the pieces."""
    return Pieces(pieces.rank, pieces.step[rows], pieces.kind[rows], pieces.value[rows])


def kinds_of_steps(pieces: Pieces) -> IntArray:
    """Return of which kind each step is, in the order of steps: those of a kind have the same pieces."""
    steps, of_step = np.unique(pieces.step, return_inverse=True)
    kinds, of_kind = np.unique(pieces.kind, return_inverse=True)
    # Sets are distinguished by the sum of a random number for each member, modulo 2 ** 64.
    numbers = np.random.default_rng(0).integers(1 << 63, size=len(kinds), dtype=np.uint64)
    sums = np.zeros(len(steps), np.uint64)
    np.add.at(sums, of_step, numbers[of_kind])
    return np.unique(sums, return_inverse=True)[1]


def whole_steps(pieces: Pieces) -> Pieces:
    """Return the same with a single piece a step."""
    steps, of_step = np.unique(pieces.step, return_inverse=True)
    value = np.where(np.isfinite(pieces.value), pieces.value, 0.0)
    seen = _sums(np.isfinite(pieces.value).astype(np.float64), of_step, len(steps)) > 0
    total = np.where(seen, _sums(value, of_step, len(steps)), np.nan)
    return Pieces(pieces.rank, steps, np.zeros(len(steps), np.int64), total)


def deviations(value: FloatArray, present: BoolArray) -> FloatArray:
    """Return by what each rank exceeds the mean of those present in each piece; NaN for the others."""
    kept = np.where(present, value, np.nan)
    count = np.isfinite(kept).sum(axis=1)
    mean = np.nansum(kept, axis=1) / np.maximum(count, 1)
    return np.asarray(np.where((count > 1)[:, None], kept - mean[:, None], np.nan))


def design_effect(pieces: Pieces, present: BoolArray, at: IntArray) -> float:
    """Return how many pieces of a step count as one, by what the other ranks show; at least 1.

    Constant differences are no noise: each rank is compared with its own mean piece, and with the median of
    the others in the same piece where there are several.
    """
    others = present.copy()
    others[at] = False
    value = pieces.value[:, others]
    steps, of_step = np.unique(pieces.step, return_inverse=True)
    kinds, of_kind = np.unique(pieces.kind, return_inverse=True)
    if not value.size or len(steps) < MIN_STEPS or len(steps) == len(pieces.step):
        return 1.0
    rows = np.isfinite(value).any(axis=1)
    value, of_step, of_kind = value[rows], of_step[rows], of_kind[rows]
    if value.shape[1] > 1:
        value = value - np.nanmedian(value, axis=1, keepdims=True)
    known = np.isfinite(value)
    value = np.where(known, value, 0.0)
    count = np.maximum(_sums(known.astype(np.float64), of_kind, len(kinds)), 1.0)
    value = np.where(known, value - (_sums(value, of_kind, len(kinds)) / count)[of_kind], 0.0)
    alone = (value**2).sum(axis=0)
    if not alone.any():
        return 1.0
    ratio = (_sums(value, of_step, len(steps)) ** 2).sum(axis=0)[alone > 0] / alone[alone > 0]
    # What chance makes of independent pieces is no effect.
    usual = 1.0 + float(np.sqrt(2.0 / (len(steps) * len(ratio))))
    return max(1.0, float(np.median(ratio)) / usual)


def _sums(value: FloatArray, group: IntArray, groups: int) -> FloatArray:
    """Return the sum over the rows of each group, by column."""
    total = np.zeros((groups, value.shape[1]))
    np.add.at(total, group, value)
    return total

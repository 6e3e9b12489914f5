"""Ranks that take longer by one factor in all pieces of some steps: the mark of a slow device.

A pause hits a piece or two, and each takes its own time. What slows all pieces of a step alike, by the same
factor in each of these steps, is no series of accidents: a device that runs at a lower clock does that. For
example, the work of a rank over that of its peers, by piece::

    step             0     1     2     3     4     5
    first piece   1.00  2.57  1.01  2.55  2.56  0.99
    second piece  0.99  2.58  1.00  2.58  2.57  1.01      slow in 1, 3 and 4
"""

from __future__ import annotations

import numpy as np

from ...tables.arrays import BoolArray, FloatArray, IntArray
from .kinds_of_steps import kinds_of_values
from .pieces import Pieces

LEAST_EXPLAINED = 0.95
"""Part of the squares between steps that two kinds of them must explain."""
FEWEST_PIECES = 4
"""Pieces of a step; with fewer, pauses hit all of them as well."""
LEAST_ALIKE, LEAST_OF_EXCESS = 0.9, 0.5
"""Part of the work in slow steps that must take longer, by at least that part of the mean excess."""
MOST_ELSEWHERE = 0.25
"""Part of the excess by which any other rank may differ from its usual step: which of two changed is open."""


def is_by_one_factor(pieces: Pieces, present: BoolArray, at: IntArray) -> bool:
    """Return whether a rank is slow by one factor in some steps, and none of its peers is.

    Args:
        pieces: Work of ranks that are each other's peers.
        present: Ranks that are compared.
        at: Position of the rank; of several none is.
    """
    others = present.copy()
    others[at] = False
    rows = np.isfinite(pieces.value[:, present]).all(axis=1)
    steps, of_step = np.unique(pieces.step[rows], return_inverse=True)
    if len(at) != 1 or not others.any() or not rows.any():
        return False
    own, rest = pieces.value[rows, at[0]], pieces.value[rows][:, others]
    peers = rest.mean(axis=1)
    by_step = np.zeros((len(steps), rest.shape[1] + 2))
    np.add.at(by_step, of_step, np.column_stack([own, peers, rest]))
    if np.bincount(of_step).min() < FEWEST_PIECES or not (by_step > 0).all():
        return False
    ratio = by_step[:, 0] / by_step[:, 1]
    is_slow = kinds_of_values(ratio, LEAST_EXPLAINED) > 0
    if not is_slow.any():
        return False
    usual = ratio[~is_slow].mean()
    excess = ratio[is_slow].mean() / usual - 1.0
    there = is_slow[of_step]
    longer = own >= usual * (1.0 + LEAST_OF_EXCESS * excess) * peers
    alike = peers[there & longer].sum() >= LEAST_ALIKE * peers[there].sum()
    return bool(alike and _unrest(by_step[:, 2:]) <= MOST_ELSEWHERE * excess)


def _unrest(by_step: FloatArray) -> float:
    """Return by which share a step of any rank differs the most from its usual one, either way.

    Of several ranks beside the mean of the others, which have the same data.

    Args:
        by_step: What each rank works in each step, ns [step, rank].
    """
    count = by_step.shape[1]
    if count > 1:
        by_step = by_step / (by_step.sum(axis=1, keepdims=True) - by_step)
    return float(np.abs(by_step / np.median(by_step, axis=0) - 1.0).max())

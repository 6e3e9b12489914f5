"""Work of microbatches as their sequences tell it.

A pass of a stage takes ``a + b * tokens + c * sum of squared lengths``: layers and head are linear in
tokens, attention in the squares. The three are fitted for each stage and direction over the passes
of healthy ranks, where the stage has one.
"""

from __future__ import annotations

import numpy as np

from ...tables.arrays import BoolArray, FloatArray, IntArray

MIN_F = 9.2
"""Least ratio of what a coefficient explains to what it would by chance: with noise alone one in 10,000
fits of two coefficients reaches it (F distribution)."""
STRAY = 5.0
"""Standard deviations from the fit beyond which a pass is no measure of its work."""
ROUNDS = 2
LEAST_EXPECTED = 0.05
"""Share of the mean pass below which no fitted pass is believed."""


def excess_of_sequences(
    time_ns: FloatArray, work: FloatArray, group: IntArray, informative: BoolArray
) -> FloatArray | None:
    """Return by how much its sequences make each pass longer than one of the mean microbatch.

    Args:
        time_ns: How long each pass took.
        work: [pass, feature] what is known of its microbatch.
        group: Number of its stage and direction, from 0 on.
        informative: Which passes tell the fit: those of healthy ranks; some of every group.

    Returns:
        Ratios: 0.1 is 10 % longer. None where not all work is known, or where the passes do not
        follow it by more than noise would.
    """
    if not np.isfinite(work).all() or not informative.any():
        return None
    centre = work.mean(axis=0)
    usual = (work - centre) / np.where(centre > 0, centre, 1.0)
    if not usual.any():
        return None
    columns = np.column_stack([np.ones(len(usual)), usual])
    kept = informative
    for _ in range(ROUNDS):
        fit = _fitted(time_ns, columns, group, kept)
        off = time_ns - (columns * fit[group]).sum(axis=1)
        deviation = np.sqrt(np.mean(off[kept] ** 2))
        kept = informative & (np.abs(off) <= STRAY * deviation)
    # The features are 0 for the mean microbatch: the constant is what it takes.
    mean = np.where(fit[group, 0] > 0, fit[group, 0], np.nan)
    ratio = (columns * fit[group]).sum(axis=1) / mean
    if not _is_followed(time_ns / mean, ratio, kept, _coefficients(columns, group, kept)):
        return None
    return np.where(ratio > LEAST_EXPECTED, ratio - 1.0, 0.0)


def _fitted(
    time_ns: FloatArray, columns: FloatArray, group: IntArray, kept: BoolArray
) -> FloatArray:
    """Return [group, column] the least squares of each group; 0 for what is not determined."""
    groups = int(group.max()) + 1
    size = columns.shape[1]
    own, x, y = group[kept], columns[kept], time_ns[kept]

    def summed(values: FloatArray) -> FloatArray:
        return np.bincount(own, values, groups).astype(np.float64)

    squares = np.stack(
        [np.stack([summed(x[:, i] * x[:, j]) for j in range(size)], -1) for i in range(size)], -2
    )
    products = np.stack([summed(x[:, i] * y) for i in range(size)], -1)
    fit = np.einsum("gij,gj->gi", np.linalg.pinv(squares, hermitian=True), products)
    return np.asarray(fit, dtype=np.float64)


def _coefficients(columns: FloatArray, group: IntArray, kept: BoolArray) -> int:
    """Return how many slopes were fitted."""
    return (int(np.linalg.matrix_rank(columns[kept])) - 1) * len(np.unique(group[kept]))


def _is_followed(own: FloatArray, fit: FloatArray, kept: BoolArray, slopes: int) -> bool:
    """Tell whether the passes follow the fit by more than noise would (F test)."""
    freedom = int(kept.sum()) - 2 * slopes
    if slopes < 1 or freedom < 1 or not np.isfinite(fit[kept]).all():
        return False
    explained = float(((fit[kept] - 1.0) ** 2).sum()) / slopes
    left = float(((own[kept] - fit[kept]) ** 2).sum()) / freedom
    return explained > MIN_F * left

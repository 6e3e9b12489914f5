"""Expected durations from what is known of the sequences of a microbatch.

A forward or backward of a stage costs ``a + b * tokens + c * sum of squared lengths``
(layers and head are linear in tokens, attention in the squares). The three are fitted
by place and kind over all replicas, from running sums.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ...tables.arrays import FloatArray

LEAST_CV = 1e-3
"""Coefficient of variation below which microbatches count as equal work."""


class WorkModel(msgspec.Struct):
    """Normal equations of the fit."""

    squares: FloatArray
    """[place, kind, feature, feature], the first feature is 1."""
    products: FloatArray
    """[place, kind, feature]."""
    scale: FloatArray | None = None
    """What features are divided by, so that the sums are of like size."""

    @property
    def differs(self) -> bool:
        """Return whether microbatches differ in their work."""
        count, total = self.squares[..., :1, 0], self.squares[..., 0, 1:]
        square = np.diagonal(self.squares, axis1=-2, axis2=-1)[..., 1:]
        # Of all microbatches alike the two sides are equal but for rounding.
        return bool((square * count > (1.0 + LEAST_CV**2) * total**2).any())

    @classmethod
    def empty(cls, places: int, kinds: int, features: int) -> WorkModel:
        """Return equations of nothing."""
        size = features + 1
        return cls(np.zeros((places, kinds, size, size)), np.zeros((places, kinds, size)))

    def add(self, step: FloatArray, features: FloatArray) -> None:
        """Add the items of one step; features are [lane, replica, place, kind, item, feature]."""
        columns = self._columns(features)
        known = np.isfinite(step) & np.isfinite(columns).all(axis=-1)
        x = np.where(known[..., None], columns, 0.0)
        y = np.where(known, step, 0.0)
        self.squares += np.einsum("ldpkmi,ldpkmj->pkij", x, x)
        self.products += np.einsum("ldpkmi,ldpkm->pki", x, y)

    def without_work(self, step: FloatArray, features: FloatArray) -> FloatArray:
        """Return durations as they would be with the usual work; unknown work stays as it is.

        The usual work is that of the first items, so that it does not move while a job runs.
        """
        columns = self._columns(features)
        fit = np.einsum("pkij,pkj->pki", np.linalg.pinv(self.squares), self.products)
        expected = np.einsum("ldpkmi,pki->ldpkm", np.nan_to_num(columns), fit)
        average = fit.sum(axis=-1)  # Features are 1 there: they are divided by their first mean.
        known = np.isfinite(columns).all(axis=-1) & (expected > 0.05 * average[..., None])
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(known, step * average[..., None] / expected, step)

    def _columns(self, features: FloatArray) -> FloatArray:
        if self.scale is None:
            flat = features.reshape(-1, features.shape[-1])
            known = np.isfinite(flat)
            total = np.where(known, np.abs(flat), 0.0).sum(axis=0)
            self.scale = np.maximum(total / np.maximum(known.sum(axis=0), 1), 1e-12)
        ones = np.ones((*features.shape[:-1], 1))
        return np.concatenate([ones, features / self.scale], axis=-1)

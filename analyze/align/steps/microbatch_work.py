"""How much work microbatches are, as the training code has described it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...tables.arrays import FloatArray, IntArray, combined
from ...tables.trace import Trace

FEATURES = ("tokens", "sum_sq")
"""Tokens of a microbatch, and the sum of the squares of its sequence lengths."""


def known_work(trace: Trace, passes: pd.DataFrame) -> FloatArray | None:
    """Return what is known of the work of some passes.

    All ranks of a replica compute the same microbatches, so that one of them tells it for all;
    what a rank tells itself comes first.

    Args:
        trace: The capture.
        passes: rank, step and microbatch of each.

    Returns:
        [pass, feature] by ``FEATURES``, NaN where it is not known; None where nothing is.
    """
    described = trace.frame("microbatch")
    described = described[described["rank"].isin(trace.ranks)]
    if described.empty or passes.empty:
        return None
    values = described[list(FEATURES)].to_numpy(np.float64)
    work = _looked_up(_numbers(described, "rank"), values, _numbers(passes, "rank"))
    unknown = np.isnan(work[:, 0])
    if trace.layout is not None and unknown.any():
        ranks = np.union1d(described["rank"], passes["rank"])
        dp = np.array([trace.layout.coordinates(int(rank))["dp"] for rank in ranks])
        replicas = (
            frame.assign(replica=dp[np.searchsorted(ranks, frame["rank"])])
            for frame in (described, passes[unknown])
        )
        of_described, of_passes = (_numbers(frame, "replica") for frame in replicas)
        work[unknown] = _looked_up(of_described, values, of_passes)
    return work if np.isfinite(work).any() else None


def _numbers(frame: pd.DataFrame, who: str) -> list[IntArray]:
    return [frame[name].to_numpy(np.int64) for name in (who, "step", "microbatch")]


def _looked_up(described: list[IntArray], values: FloatArray, wanted: list[IntArray]) -> FloatArray:
    """Return the values of the last described row with each wanted key; NaN where there is none."""
    key = combined(*(np.concatenate(both) for both in zip(described, wanted, strict=True)))
    own, asked = key[: len(values)], key[len(values) :]
    order = np.argsort(own, kind="stable")
    place = np.searchsorted(own[order], asked, side="right") - 1
    last = order[np.maximum(place, 0)]
    is_described = (place >= 0) & (own[last] == asked)
    return np.where(is_described[:, None], values[last], np.nan)

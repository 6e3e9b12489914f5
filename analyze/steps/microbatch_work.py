"""How much work microbatches are, as the training code has told it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..arrays import FloatArray
from ..capture.trace import Trace

FEATURES = ("tokens", "sum_sq")
"""Tokens of a microbatch, and the sum of the squares of its sequence lengths."""
_KEYS = ["step", "microbatch"]


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
    told = trace.frame("microbatch")
    if told.empty or passes.empty:
        return None
    columns = ["rank", *_KEYS, *FEATURES]
    told = told[columns].drop_duplicates(["rank", *_KEYS], keep="last").sort_values("rank")
    wanted = passes[["rank", *_KEYS]].reset_index(drop=True)
    found = wanted.merge(told, on=["rank", *_KEYS], how="left")[list(FEATURES)]
    if trace.layout is not None:
        layout = trace.layout
        replica = {rank: layout.coordinates(rank)["dp"] for rank in trace.ranks}
        of_replica = told.assign(replica=told["rank"].map(replica)).dropna(subset="replica")
        of_replica = of_replica.drop_duplicates(["replica", *_KEYS]).drop(columns="rank")
        same = wanted.assign(replica=wanted["rank"].map(replica))
        same = same.merge(of_replica, on=["replica", *_KEYS], how="left")
        found = found.fillna(same[list(FEATURES)])
    work = found.to_numpy(np.float64)
    return work if np.isfinite(work).any() else None

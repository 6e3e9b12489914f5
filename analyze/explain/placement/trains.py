"""The most that is sent in one go: messages between which a port has less rest than the one before took.

A port may pass so much faster than it carries for long: buffers and allowances for bursts are filled by it. Worked example,
messages of 10 bytes::

    start 0, took 4
    start 6, took 4    rest of 2: the same train, 20 bytes
    start 20, took 4   rest of 10: a train of its own
"""

from __future__ import annotations

import numpy as np
import pandas as pd

_OF_RANK = ["axis", "pattern", "rank"]


def longest_trains(sent: pd.DataFrame, ranks: int) -> pd.Series:
    """Return the longest train of a rank, bytes, the mean over ranks.

    Args:
        sent: axis, pattern, rank, starts (ns), wire (ns) and sent (bytes) of each message.
        ranks: How many ranks the job has.

    Returns:
        Index axis, pattern.
    """
    rows = sent.sort_values([*_OF_RANK, "starts"], kind="stable")
    ends, took = rows["starts"] + rows["wire"], rows["wire"]
    keys = [rows[name] for name in _OF_RANK]
    rest = rows["starts"] - ends.groupby(keys).shift()
    is_first = ~(rest <= took.groupby(keys).shift())  # NaN of the first of a rank is one.
    train = pd.Series(np.cumsum(is_first.to_numpy()), index=rows.index)
    by_train = rows["sent"].groupby([*keys, train]).sum()
    longest = by_train.groupby(level=_OF_RANK).max()
    mean: pd.Series = longest.groupby(level=["axis", "pattern"]).sum() / max(ranks, 1)
    return mean

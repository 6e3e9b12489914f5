"""Ranks whose communication was not recorded when a capture ended.

A probe that takes too much, or that is asked to, records less from a step on. What its rank has
issued since is not known: that others are ahead of its last record says nothing.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.terms import CaptureLevel

from ..labels import rank_words

_WITH_COMMUNICATION = (CaptureLevel.COLLECTIVES.value, CaptureLevel.KERNELS.value)


def unheard_ranks(recording: pa.Table) -> frozenset[int]:
    """Return the ranks whose last level leaves communication out.

    Args:
        recording: The ``recording`` table.
    """
    rows: pd.DataFrame = recording.select(["rank", "step", "level"]).to_pandas()
    last = rows.sort_values("step", kind="stable").drop_duplicates("rank", keep="last")
    without = last[~last["level"].astype(str).isin(_WITH_COMMUNICATION)]
    return frozenset(without["rank"].astype(int))


def unheard_limit(recording: pa.Table) -> tuple[str, ...]:
    """Return a limit for a capture that broke off: ranks of which nobody knows where they are.

    Args:
        recording: The ``recording`` table.
    """
    ranks = unheard_ranks(recording)
    if not ranks:
        return ()
    return (
        f"the communication of {rank_words(sorted(ranks))} was not recorded when the capture broke off: "
        "whether others wait there is not known",
    )

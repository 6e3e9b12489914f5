"""What the probe cost by its own measure, and where it recorded less than before."""

from __future__ import annotations

import numpy as np

from meshscope.probe.schema.listing import listed

from .capture.trace import Trace
from .words import counted

_OVER_BUDGET = "over budget"
"""How the reason of a level begins that was lowered for its cost."""


def probe_cost(trace: Trace) -> dict[str, float | int | None]:
    """Return the cost of the hooks as a share of the time of the measured steps.

    Returns:
        ``probe_cost_frac`` (mean of the ranks), ``probe_cost_most_frac`` and
        ``probe_cost_most_rank``; all None where no rank measured itself.
    """
    rows = trace.frame("recording").dropna(subset=["cost_ns"])
    by_rank = rows.astype({"cost_ns": np.float64}).groupby("rank")[["cost_ns", "dur_ns"]].sum()
    by_rank = by_rank[by_rank["dur_ns"] > 0]
    if by_rank.empty:
        return dict.fromkeys(("probe_cost_frac", "probe_cost_most_frac", "probe_cost_most_rank"))
    share = by_rank["cost_ns"] / by_rank["dur_ns"]
    return {
        "probe_cost_frac": float(share.mean()),
        "probe_cost_most_frac": float(share.max()),
        "probe_cost_most_rank": int(share.index.to_numpy()[share.to_numpy().argmax()]),
    }


def level_limits(trace: Trace) -> tuple[str, ...]:
    """Return the ranks whose probe lowered its level because it took too much."""
    rows = trace.frame("recording")
    lowered = rows[rows["reason"].astype(str).str.startswith(_OVER_BUDGET)]
    if lowered.empty:
        return ()
    first = lowered.drop_duplicates("rank")
    places = [
        f"rank {row['rank']} from step {row['step']} on at the level {row['level']}"
        for row in first.to_dict("records")
    ]
    return (
        f"the probe recorded less on {counted(len(first), 'rank')}, {_OVER_BUDGET}: "
        + listed(places),
    )

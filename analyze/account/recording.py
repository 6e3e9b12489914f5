"""What the probe cost by its own measure, and where it recorded less for that."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.sampling import OVER_BUDGET, SAMPLED, WINDOW_STEPS

from ..tables.trace import Trace
from ..wording.words import counted


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
    """Return the ranks whose probe recorded less because it took too much."""
    rows = trace.frame("recording")
    reason = rows["reason"].astype(str)
    sampled = reason.str.startswith(SAMPLED)
    lowered = reason.str.startswith(OVER_BUDGET) & ~sampled
    return (*_sampled(rows[sampled], len(trace.ranks)), *_lowered(rows[lowered]))


def _sampled(rows: pd.DataFrame, captured: int) -> tuple[str, ...]:
    if rows.empty:
        return ()
    ranks, period = rows["rank"].nunique(), WINDOW_STEPS * int(rows["one_in"].max())
    who = "all ranks" if ranks == captured else counted(ranks, "rank")
    return (
        f"from step {rows['step'].min()} on the probe recorded {WINDOW_STEPS} of every {period} steps on "
        f"{who}, {OVER_BUDGET} otherwise: of the other steps it knows the length, and none of the "
        "communication, pauses and memory in them",
    )


def _lowered(lowered: pd.DataFrame) -> tuple[str, ...]:
    if lowered.empty:
        return ()
    first = lowered.drop_duplicates("rank")
    places = [
        f"rank {row['rank']} from step {row['step']} on at the level {row['level']}"
        for row in first.to_dict("records")
    ]
    return (
        f"the probe recorded less on {counted(len(first), 'rank')}, {OVER_BUDGET}: "
        + listed(places),
    )

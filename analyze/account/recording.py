"""What the probe cost by its own measure, and where it recorded less for that."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.message import cell_to_json
from meshscope.probe.schema.sampling import EARLY_STEPS, EARLY_WINDOW_STEPS, WINDOW_STEPS

from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import message

_OLD_SAMPLED = "over budget, so one window in "
_OLD_LOWERED = "over budget: "
"""How reasons of a stretch began where older probes wrote them as sentences."""


def probe_cost(trace: Trace) -> dict[str, float | int | None]:
    """Return the cost of the hooks as a share of the time of the measured steps.

    Returns:
        ``probe_cost_frac`` (mean of the ranks), ``probe_cost_most_frac`` and
        ``probe_cost_most_rank``; all None where no rank measured itself.
    """
    unknown = dict.fromkeys(("probe_cost_frac", "probe_cost_most_frac", "probe_cost_most_rank"))
    if not trace.row_count("recording"):
        return unknown
    rows = trace.frame("recording").dropna(subset=["cost_ns"])
    # Before its first step has ended, a rank has measured next to nothing of itself.
    rows = rows[(rows["steps"].isna() | (rows["steps"] > 0)).to_numpy(bool)]
    by_rank = rows.astype({"cost_ns": np.float64}).groupby("rank")[["cost_ns", "dur_ns"]].sum()
    by_rank = by_rank[by_rank["dur_ns"] > 0]
    if by_rank.empty:
        return unknown
    share = by_rank["cost_ns"] / by_rank["dur_ns"]
    return {
        "probe_cost_frac": float(share.mean()),
        "probe_cost_most_frac": float(share.max()),
        "probe_cost_most_rank": int(share.index.to_numpy()[share.to_numpy().argmax()]),
    }


def level_limits(trace: Trace) -> tuple[Limit, ...]:
    """Return the ranks whose probe recorded less because it took too much."""
    if not trace.row_count("recording"):
        return ()
    rows = trace.frame("recording")
    code = rows["reason"].map(_code_of_reason)
    sampled, lowered = (rows[code == one] for one in ("level.sampled", "level.over_budget"))
    last = rows.sort_values("step", kind="stable").drop_duplicates("rank", keep="last")
    return (*_sampled(sampled, last, len(trace.ranks)), *_lowered(lowered))


def _code_of_reason(cell: object) -> str:
    """Return why a stretch begins, also where its level was reached in part only."""
    said = cell_to_json(str(cell))
    while said is not None and said["code"] == "level.incomplete":
        said = said["values"]["because"]
    if said is not None:
        return str(said["code"])
    if str(cell).startswith(_OLD_SAMPLED):
        return "level.sampled"
    return "level.over_budget" if str(cell).startswith(_OLD_LOWERED) else ""


def _sampled(rows: pd.DataFrame, last: pd.DataFrame, captured: int) -> tuple[Limit, ...]:
    """Return from which step on ranks recorded some windows only, and until when.

    Args:
        rows: Stretches that were recorded so.
        last: The last stretch of each rank.
        captured: How many ranks there are.
    """
    if rows.empty:
        return ()
    own = last[last["rank"].isin(rows["rank"].unique())]
    first, ranks = int(rows["step"].min()), len(own)
    values = {
        "first": first,
        "one_in": int(rows["one_in"].max()),
        "window": WINDOW_STEPS,
        "early_window": EARLY_WINDOW_STEPS,
        "early": EARLY_STEPS,
    }
    if (own["one_in"] == 1).all():
        last_step = int(own["step"].max()) - 1
        return (message("missing.sampled_until", last=last_step, count=ranks, **values),)
    if ranks == captured:
        return (message("missing.sampled_on_all", **values),)
    return (message("missing.sampled_on_some", count=ranks, **values),)


def _lowered(lowered: pd.DataFrame) -> tuple[Limit, ...]:
    if lowered.empty:
        return ()
    first = lowered.drop_duplicates("rank")
    places = [
        message(
            "missing.recorded_less_on",
            rank=int(row["rank"]),
            step=int(row["step"]),
            level=str(row["level"]),
        )
        for row in first.to_dict("records")
    ]
    return (message("missing.recorded_less", count=len(first), places=places),)

"""What a reader needs to know before believing the numbers of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from meshscope.analyze.output.timeline.slices import steps_of
from meshscope.analyze.wording.limits import (
    Limit,
    Meaning,
    limit_texts,
    limits_to_json,
    meaning_of,
)
from meshscope.analyze.wording.message import Message, cells_to_json

from ..runs.loaded_run import LoadedRun
from .live import missing_ranks


def trust(run: LoadedRun) -> dict[str, Any]:
    """Return what was captured, what that cost, and on what the results rest.

    Returns:
        ``overhead`` holds the cost of the probe as a share of the step time, by its own measure, and
        ``ranks`` one row a rank and stretch of steps. ``clocks`` holds one row a corrected clock, in
        ns. ``losses`` and ``clock_limits`` are those of the ``limits`` about what was not recorded or is
        left out, and about clocks. What is unknown is None.
    """
    diagnosis, use = run.diagnosis, run.diagnosis.utilization
    limits, expected = diagnosis.limits, diagnosis.expectation
    steps = run.trace.frame("step")["step"]
    return {
        "run_id": run.run_id,
        "origin": run.trace.origin,
        "capture_level": run.trace.run.get("capture_level"),
        "coverage": {
            "world_size": run.trace.run.get("world_size"),
            "ranks_captured": len(run.trace.ranks),
            "missing_ranks": missing_ranks(run),
            "steps_recorded": int(steps.nunique()),
            "steps_analysed": int(diagnosis.ledger["step"].nunique()),
            "steps_drawable": len(steps_of(run.trace)),
            "attempts": run.trace.frame("attempt").to_dict("records"),
        },
        "overhead": {
            "mean_frac": diagnosis.run.get("probe_cost_frac"),
            "most_frac": diagnosis.run.get("probe_cost_most_frac"),
            "most_rank": diagnosis.run.get("probe_cost_most_rank"),
            "ranks": _recording(run),
        },
        "clocks": run.trace.frame("clock_sync").to_dict("records"),
        "clock_limits": limit_texts(filter(_is_of_clocks, limits)),
        "losses": _meaning(limits, Meaning.MISSING),
        "conventions": {
            "peak_flops": use.peak_flops,
            "peak_source": use.peak_source,
            "flops_convention": use.flops_convention,
            "flops_by_convention": dict(use.flops_by_convention),
            "mfu_by_convention": dict(use.mfu_by_convention),
            "notes": limit_texts(use.notes),
        },
        "assumptions": {
            "assumed": list(map(str, expected.assumed)),
            "inferred": list(map(str, expected.inferred)),
            "unknown_because": str(expected.unknown_because),
            "by_analysis": _meaning(limits, Meaning.ASSUMED),
        },
        "model_error_frac": diagnosis.model_error_frac,
        **limits_to_json(limits),
    }


def _meaning(limits: Iterable[Limit], meaning: Meaning) -> list[str]:
    return limit_texts(one for one in limits if meaning_of(one) is meaning)


def _is_of_clocks(limit: Limit) -> bool:
    return isinstance(limit, Message) and "clocks" in limit.code


def _recording(run: LoadedRun) -> list[dict[str, Any]]:
    """Return what the probe of each rank recorded, and what that cost; the dearest first."""
    rows = run.trace.frame("recording")
    if rows.empty:
        return []
    cost = pd.to_numeric(rows["cost_ns"], errors="coerce") / rows["dur_ns"].where(
        rows["dur_ns"] > 0
    )
    table = rows[["rank", "step", "level", "reason", "one_in", "steps", "dur_ns", "cost_ns"]]
    table = table.assign(cost_frac=cost).sort_values("cost_frac", ascending=False)
    return [
        {str(name): cell for name, cell in row.items()} | cells_to_json(row, "reason")
        for row in table.to_dict("records")
    ]

"""The JSON form of the memory of a run: measured, expected, its terms, over time, and the headroom."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from ...account.memory.by_stage import memory_by_stage
from ...explain.memory.expected import ExpectedMemory, expected_memory, with_expected
from ...explain.memory.headroom import headroom
from ...tables.trace import Trace, stage_of_ranks
from ...wording.limits import reason_to_json
from .diagnosis import records_to_json

MOST_STEPS = 512
"""Points over time of a stage; of more steps every n-th is kept, with the most of those between."""


def memory_to_json(trace: Trace) -> dict[str, Any]:
    """Return what stages held and should hold; empty lists where no memory was recorded."""
    by_stage = memory_by_stage(trace)
    expectation = expected_memory(trace, by_stage)
    found = expectation.found
    table = with_expected(by_stage, found)
    room = None if found is None else headroom(table, found)
    return {
        "stages": records_to_json(table),
        "expectation": asdict(expectation.kept) | reason_to_json(expectation.unknown_because),
        "terms": {} if found is None else _terms(found),
        "over_time": _over_time(trace),
        "headroom": None if room is None else asdict(room),
    }


def _terms(found: ExpectedMemory) -> dict[str, list[dict[str, Any]]]:
    """Return the terms of each stage, the largest first."""
    return {
        str(one.stage): [
            {
                "category": term.category.value,
                "name": str(term.name),
                "bytes": round(term.size_bytes),
                "formula": term.formula,
                "source": term.source,
            }
            for term in sorted(one.terms, key=lambda term: -term.size_bytes)
        ]
        for one in found.stages
    }


def _over_time(trace: Trace) -> list[dict[str, Any]]:
    """Return by stage the most that a rank held in each step, bytes."""
    frame = trace.frame("memory")
    frame = frame[frame["step"] >= 0]
    if frame.empty:
        return []
    stage = stage_of_ranks(trace, sorted(set(frame["rank"].tolist())))
    held = frame["allocated_bytes"].astype("Float64")
    held = held.fillna(frame["peak_bytes"].astype("Float64"))
    held = held.fillna(frame["rss_bytes"].astype("Float64"))
    rows = pd.DataFrame({"stage": frame["rank"].map(stage), "step": frame["step"], "bytes": held})
    steps = np.sort(rows["step"].unique())
    stride = -(-len(steps) // MOST_STEPS)
    rows["step"] = steps[np.searchsorted(steps, rows["step"]) // stride * stride]
    most = rows.dropna().groupby(["stage", "step"], as_index=False)["bytes"].max()
    return [
        {
            "stage": int(str(number)),
            "steps": own["step"].tolist(),
            "bytes": [round(size) for size in own["bytes"]],
        }
        for number, own in most.groupby("stage")
    ]

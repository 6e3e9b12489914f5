"""What a job does now: whether it runs, its last steps, and each rank's score and last record."""

from __future__ import annotations

from statistics import median
from typing import Any

import pandas as pd

from meshscope.analyze.output.json.standstill import standstill_to_json

from ..runs.clock import unix_ns
from ..runs.loaded_run import LoadedRun, is_running
from .trend import trend

RECENT_STEPS = 10
"""Steps whose median is the step time of now."""
MOST_STEPS = 500
"""Last steps that the page draws."""
_SETTLED_NS = 15 * 10**9
"""A launcher notes how a process ended some time after that; until then a page looks again."""
_ENDED = ("hang", "crash", "job_ended")


def live(run: LoadedRun) -> dict[str, Any]:
    """Return the state of a job as far as it was read.

    Returns:
        ``state`` is ``running``, ``in_order``, ``hang``, ``crash``, ``job_ended``, ``broke_off`` or
        ``unknown``, ``claim`` says it in a sentence; ``written_ago_ns`` counts from the newest file, and
        ``read_ago_ns`` from the reading, None for a run of long ago.
        ``step_time_ns`` is the median of the last ten steps and ``mfu`` their mean, None where
        unknown. ``ranks`` holds, slowest first, the slowdown against peers over all analysed steps,
        how long a rank recorded nothing when the last one did, and how its process ended.
    """
    found = standstill_to_json(run.trace, run.diagnosis.findings, is_running=is_running(run))
    written_ago_ns = max(unix_ns() - run.times.written_ns, 0)
    steps = trend(run)
    last = steps[-RECENT_STEPS:]
    lengths = [row["step_ns"] for row in last]
    mfu = [row["mfu"] for row in last if row["mfu"] is not None]
    return {
        "run_id": run.run_id,
        "state": found["state"],
        "claim": found["claim"],
        "is_over": found["state"] != "running" and written_ago_ns > _SETTLED_NS,
        "as_of_unix_ns": run.times.as_of_ns,
        "written_ago_ns": written_ago_ns,
        "read_ago_ns": None
        if run.times.as_of_ns is None
        else max(unix_ns() - run.times.as_of_ns, 0),
        "last_step": last[-1]["step"] if last else None,
        "step_time_ns": median(lengths) if lengths else None,
        "mfu": sum(mfu) / len(mfu) if mfu else None,
        "mfu_unknown_because": str(run.diagnosis.utilization.unknown_because),
        "steps": steps[-MOST_STEPS:],
        "ranks": _ranks(run, found["ranks"]),
        "missing_ranks": missing_ranks(run),
        "findings": [str(one.claim) for one in run.diagnosis.findings],
    }


def is_ended_early(state: str) -> bool:
    """Return whether a state says that the job did not get to its end."""
    return state in (*_ENDED, "broke_off")


def missing_ranks(run: LoadedRun) -> list[int]:
    """Return the ranks of the job that have recorded nothing."""
    world = run.trace.run.get("world_size")
    if not isinstance(world, int):
        return []
    return sorted(set(range(world)) - set(run.trace.ranks))


def _ranks(run: LoadedRun, at_end: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table = run.diagnosis.stragglers
    score = dict(zip(table["rank"].tolist(), table["slowdown"].tolist(), strict=True))
    own = {row["rank"]: row for row in at_end}
    rows = [
        {
            "rank": int(rank),
            "host": run.trace.host_of(rank),
            "slowdown": _known(score.get(rank)),
            "silent_ns": own.get(rank, {}).get("silent_ns"),
            "operation": own.get(rank, {}).get("operation"),
            # How a process that is still there will end is not unknown: it has no end.
            "ended_by": None if is_running(run) else own.get(rank, {}).get("ended_by"),
        }
        for rank in run.trace.ranks
    ]
    return sorted(rows, key=lambda row: (-(row["slowdown"] or 0.0), row["rank"]))


def _known(value: float | None) -> float | None:
    return None if value is None or pd.isna(value) else float(value)

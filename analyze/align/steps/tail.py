"""What a capture tells of the borders of its steps: where they changed, and where they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from meshscope.probe.schema.manifest import LED_ANEW_KEY, OTHER_UPDATES_KEY

from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from .last_records import last_records_ns

MOST_TAIL_STEPS = 10
"""Steps of the usual length that may have been recorded after the last one that ended."""


def led_anew(manifests: Mapping[int, Mapping[str, Any]]) -> list[Limit]:
    """Return a limit where another optimizer than before ends the steps of a run from some on."""
    steps: set[int] = set()
    for manifest in manifests.values():
        said = manifest.get("annotations")
        found = said.get(LED_ANEW_KEY) if isinstance(said, dict) else None
        steps |= {step for step in found if type(step) is int} if isinstance(found, list) else set()
    if not steps:
        return []
    return [message("assumed.other_optimizer", steps=[(step, step) for step in sorted(steps)])]


def other_updates(manifests: Mapping[int, Mapping[str, Any]]) -> list[Limit]:
    """Return a limit where another optimizer is not updated once a step: what is a step is then for the user to say."""
    for manifest in manifests.values():
        said = manifest.get("annotations")
        match said.get(OTHER_UPDATES_KEY) if isinstance(said, dict) else None:
            case [int(steps), int(updates)]:
                return [message("assumed.one_of_optimizers", steps=steps, updates=updates)]
    return []


def unrecorded_saves(manifests: Mapping[int, Mapping[str, Any]]) -> list[Limit]:
    """Return a limit for a capture that broke off: communication of saves that was not recorded."""
    counters = (manifest.get("counters") for manifest in manifests.values())
    counts = [c.get("background_save_collectives") for c in counters if isinstance(c, dict)]
    known = sum(count for count in counts if type(count) is int)
    if not known:
        return []
    return [message("unknown.saves_unrecorded", count=known)]


def recorded_after(trace: Trace) -> list[Limit]:
    """Return a limit where a capture of ours goes on for long after its last finished step."""
    steps = trace.frame("step")
    if not trace.capabilities.begins_with_process or trace.per_step_clock or steps.empty:
        return []
    ends = (steps["start_ns"] + steps["dur_ns"]).groupby(steps["rank"]).max()
    tail = (last_records_ns(trace).reindex(ends.index) - ends).max()
    usual = float(steps["dur_ns"].median())
    if usual <= 0 or not tail > MOST_TAIL_STEPS * usual:
        return []
    spans = trace.frame("span")
    updates = spans[spans["kind"] == "optimizer"]
    later = updates["start_ns"] > updates["rank"].map(ends)
    most = int(later.groupby(updates["rank"]).sum().max()) if len(updates) else 0
    tail_ns, usually = float(tail), round(tail / usual)
    if most:
        return [
            message("missing.records_after_updates", tail_ns=tail_ns, steps=usually, updates=most)
        ]
    return [message("missing.records_after", tail_ns=tail_ns, steps=usually)]


def unsure_microbatches(trace: Trace) -> bool:
    """Return whether passes of a capture of ours are numbered from its start, not by step."""
    is_own = trace.capabilities.counts_steps_by_rank and bool(trace.row_count("span"))
    ranks_with_steps: pd.Series = trace.frame("step")["rank"]
    return is_own and not set(trace.ranks) <= set(ranks_with_steps)

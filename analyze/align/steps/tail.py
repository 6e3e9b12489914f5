"""What a capture tells of the borders of its steps: where they changed, and where they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.manifest import LED_ANEW_KEY

from ...tables.trace import Trace
from ...wording.words import counted
from .last_records import last_records_ns
from .whole_capture import REMEDY

MOST_TAIL_STEPS = 10
"""Steps of the usual length that may have been recorded after the last one that ended."""


def led_anew(manifests: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a limit where another optimizer than before ends the steps of a run from some on."""
    steps: set[int] = set()
    for manifest in manifests.values():
        said = manifest.get("annotations")
        found = said.get(LED_ANEW_KEY) if isinstance(said, dict) else None
        steps |= {step for step in found if type(step) is int} if isinstance(found, list) else set()
    if not steps:
        return []
    which = f"step{'' if len(steps) == 1 else 's'} {listed(sorted(steps), most=16)}"
    return [
        f"another optimizer than before ends the steps from {which} on, which hold some of its "
        f"updates each; if it is no replacement for the old one, {REMEDY}"
    ]


def unrecorded_saves(manifests: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a limit for a capture that broke off: communication of saves that was not recorded."""
    counters = (manifest.get("counters") for manifest in manifests.values())
    counts = [c.get("background_save_collectives") for c in counters if isinstance(c, dict)]
    known = sum(count for count in counts if type(count) is int)
    if not known:
        return []
    return [
        f"{counted(known, 'collective')} of checkpoints saved in the background are not in the capture: "
        "if ranks wait in one, nothing tells"
    ]


def recorded_after(trace: Trace) -> list[str]:
    """Return a limit where a capture of ours goes on for long after its last finished step."""
    steps = trace.frame("step")
    if trace.origin != "meshscope" or trace.per_step_clock or steps.empty:
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
    held = f", with {counted(most, 'update')} of an optimizer" if most else ""
    return [
        f"records go on for {tail / 1e9:.3g} s after the last finished step, as long as "
        f"{tail / usual:.0f} steps{held}: that is in no step and not in the account; if it was "
        f"training, {REMEDY}"
    ]


def unsure_microbatches(trace: Trace) -> bool:
    """Return whether passes of a capture of ours are numbered from its start, not by step."""
    is_own = trace.origin == "meshscope" and bool(trace.row_count("span"))
    ranks_with_steps: pd.Series = trace.frame("step")["rank"]
    return is_own and not set(trace.ranks) <= set(ranks_with_steps)

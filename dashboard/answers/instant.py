"""What a row of the timeline shows at an instant, as values and in words."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from meshscope.analyze.align.steps.whole_capture import WHOLE_CAPTURE
from meshscope.analyze.output.timeline.at_instant import Transfer, slice_at, transfer_at
from meshscope.analyze.output.timeline.categories import COMMUNICATION, LABELS, Category
from meshscope.analyze.wording.words import axis_label, capitalised, counted, joined

from ..plain import units
from ..runs.loaded_run import LoadedRun
from ..view.state import ViewState
from .views import timeline

_MOST_RANKS = 8
_FIELDS = (
    *("step", "rank", "place", "category", "text", "start_ns", "end_ns", "dur_ns", "microbatch"),
    *("operation", "operation_unknown_because"),
)
_NOT_ANALYSED = "this step is not among those that can be analysed"


def instant(
    run: LoadedRun, state: ViewState, row: int, at_ns: int, *, transfer: bool = True
) -> dict[str, Any]:
    """Return what a row shows at an instant of the step that a view shows.

    Args:
        run: The run.
        state: The view.
        row: From 0, in the order of the view.
        at_ns: From the start of the step.
        transfer: Whether the operation is looked up in all ranks, which takes longer the first time.

    Returns:
        step; rank and place, None outside the rows; of the slice category, text, start_ns, end_ns, dur_ns and
        microbatch, None where nothing is drawn; operation (kind, axis, group_id, size_bytes, ranks,
        waited_ns, wire_ns, waited_for, came_ns, until_ns), None where there is none, its times from the start
        of the step; operation_unknown_because, else None.
    """
    # What is left out of the figure was recorded all the same; the rows are the same without it.
    step, _ = timeline(run, replace(state, hidden=()))
    facts: dict[str, Any] = dict.fromkeys(_FIELDS)
    facts["step"] = None if step.step == WHOLE_CAPTURE else step.step
    if not 0 <= row < len(step.ranks):
        return facts
    facts |= {"rank": step.ranks[row], "place": step.labels[row]}
    # What an address asks for may be larger than any time.
    at_ns = min(max(at_ns, -1), step.length_ns)
    found = slice_at(step, row, at_ns)
    if found is None:
        return facts
    category, start, end = Category(found["category"]), int(found["start_ns"]), int(found["end_ns"])
    facts |= {
        "category": LABELS[category],
        "text": str(found["text"]),
        "start_ns": start,
        "end_ns": end,
        "dur_ns": end - start,
        "microbatch": int(found["microbatch"]) if found["microbatch"] >= 0 else None,
    }
    if transfer and category in COMMUNICATION:
        transfers = run.transfers(step.step)
        if transfers is None:
            facts["operation_unknown_because"] = _NOT_ANALYSED
        elif own := transfer_at(transfers, facts["rank"], step.origin_ns + at_ns):
            facts["operation"] = asdict(_from_start(own, step.origin_ns))
    return facts


def _from_start(own: Transfer, origin_ns: int) -> Transfer:
    """Return an operation with its times from the start of the step."""
    came, until = (None if ns is None else ns - origin_ns for ns in (own.came_ns, own.until_ns))
    return replace(own, came_ns=came, until_ns=until)


def sentences(facts: dict[str, Any]) -> list[str]:
    """Return what ``instant`` found, a sentence each; empty where the row or the instant is outside."""
    if facts["rank"] is None:
        return []
    if facts["text"] is None:
        return ["Nothing was recorded here."]
    what = [
        f"{capitalised(facts['text'])}.",
        f"Takes {units.duration(facts['dur_ns'])}, from {units.duration(facts['start_ns'])} "
        f"to {units.duration(facts['end_ns'])} of the step.",
    ]
    if facts["operation_unknown_because"]:
        what.append(f"Whom it waited for is not known: {facts['operation_unknown_because']}.")
    return what if facts["operation"] is None else [*what, *_of_transfer(facts["operation"])]


def _of_transfer(facts: dict[str, Any]) -> list[str]:
    own = Transfer(**facts)
    size = "size unknown" if own.size_bytes is None else units.size(own.size_bytes)
    kind = {"recv": "receive"}.get(own.kind, own.kind.replace("_", "-"))
    named = [str(rank) for rank in own.ranks[:_MOST_RANKS]]
    if len(own.ranks) > _MOST_RANKS:
        named.append(f"{len(own.ranks) - _MOST_RANKS} more")
    texts = [
        f"{capitalised(kind)} over {axis_label(own.axis)}, group {own.group_id}, {size}.",
        f"{counted(len(own.ranks), 'recorded member')}: {joined(named)}.",
    ]
    if own.waited_ns is None or own.wire_ns is None:
        return [*texts, "How much of it is waiting is not known: its end was not seen."]
    texts.append(
        f"Waited {units.duration(own.waited_ns)}; the transfer took {units.duration(own.wire_ns)}."
    )
    if own.waited_for is not None:
        texts.append(f"Rank {own.waited_for} came last.")
    return texts

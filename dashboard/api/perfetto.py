"""A window of the timeline as a trace that the Perfetto UI opens: what the figure shows, no more.

Format: "Trace Event Format" (Google, 2016): complete events ``X`` and metadata ``M``, times in
microseconds from the start of the step. ``meshscope export`` writes the whole capture, with flows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshscope.analyze.output.timeline.categories import LABELS, Category
from meshscope.analyze.output.timeline.slices import StepSlices, in_window

MOST_EVENTS = 500_000
"""Slices in one file; a narrower window gives the rest."""
_NS_PER_US = 1e3


def window_trace(step: StepSlices, window_ns: tuple[int, int]) -> dict[str, Any]:
    """Return a window of a step in the format of Chrome traces.

    Args:
        step: One row a rank; a rank becomes a process, in the order of the rows.
        window_ns: Begin and end, from the start of the step; slices keep their whole length.
    """
    seen = in_window(step.slices, window_ns)
    return {
        "displayTimeUnit": "ns",
        "otherData": {"slices_in_window": len(seen), "step": int(step.step)},
        "traceEvents": [*_names(step), *_events(seen.head(MOST_EVENTS))],
    }


def _names(step: StepSlices) -> Iterator[dict[str, Any]]:
    for row, (rank, label) in enumerate(zip(step.ranks, step.labels, strict=True)):
        for name, value in (
            ("process_name", {"name": label}),
            ("process_sort_index", {"sort_index": row}),
        ):
            yield {"ph": "M", "name": name, "pid": int(rank), "tid": 0, "args": value}


def _events(seen: Any) -> Iterator[dict[str, Any]]:
    columns = (seen[name].tolist() for name in ("rank", "category", "start_ns", "end_ns", "text"))
    for rank, category, start_ns, end_ns, text in zip(*columns, strict=True):
        label = LABELS[Category(category)]
        yield {
            "ph": "X",
            "pid": int(rank),
            "tid": 0,
            "ts": start_ns / _NS_PER_US,
            "dur": (end_ns - start_ns) / _NS_PER_US,
            "name": str(text).replace("<br>", ", ") or label,
            "cat": label,
        }

"""The critical path as text."""

from __future__ import annotations

from typing import Any

from ...wording.labels import class_label
from ...wording.text_table import text_table
from .amounts import limit_lines, milliseconds
from .page import page

MOST_ROWS = 12
APART = 0.001
"""Share by which the path and the longest rank differ from which it is said what is what."""


def critical_path_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return what the length of a step consists of: by class, by rank, and its longest pieces."""
    length = milliseconds(result["step_time_ns"])
    what = "the whole capture" if result["step"] is None else f"step {result['step']}"
    title = f"Critical path of {what}: {length} ms"
    by_class = [(class_label(row["class"]), *_amount(row)) for row in result["by_class"]]
    by_rank = [
        (row["rank"], "-" if row["stage"] < 0 else row["stage"], *_amount(row))
        for row in result["by_rank"][:MOST_ROWS]
    ]
    pieces = sorted(result["pieces"], key=lambda piece: -piece["dur_ns"])[:MOST_ROWS]
    longest = [
        (
            milliseconds(piece["start_ns"]),
            milliseconds(piece["dur_ns"]),
            piece["rank"],
            class_label(piece["class"]),
            "-" if piece["microbatch"] < 0 else piece["microbatch"],
            piece["link"] or piece["group_id"] or "-",
        )
        for piece in sorted(pieces, key=lambda piece: piece["start_ns"])
    ]
    headers = ("at ms", "ms", "rank", "what", "microbatch", "group or link")
    lines = [
        f"# {title}" if markdown else title,
        *_because(result, markdown=markdown),
        *_length(result, markdown=markdown),
        "",
        *text_table(("what", "ms", "of the step"), by_class, markdown=markdown),
        "",
        *text_table(("rank", "stage", "ms", "of the step"), by_rank, markdown=markdown),
        "",
        f"The {len(longest)} longest of {len(result['pieces'])} pieces, in the order of time",
        "",
        *text_table(headers, longest, markdown=markdown),
        *limit_lines(result["limits"]),
    ]
    return page(lines, markdown=markdown)


def _because(result: dict[str, Any], *, markdown: bool) -> list[str]:
    """Return why it is this step, where nobody asked for it."""
    if not result["step_because"]:
        return []
    return [
        *([""] if markdown else []),
        f"Shown is step {result['step']}: {result['step_because']}",
    ]


def _length(result: dict[str, Any], *, markdown: bool) -> list[str]:
    """Return what the length is of, where no rank needs as long for the step."""
    path_ns, rank_ns = result["step_time_ns"], result["longest_rank_ns"]
    if abs(path_ns - rank_ns) <= APART * path_ns:
        return []
    return [
        *([""] if markdown else []),
        f"Counted {result['step_time_of']}; the rank that takes longest takes "
        f"{milliseconds(rank_ns)} ms",
    ]


def _amount(row: dict[str, Any]) -> tuple[str, str]:
    return milliseconds(row["dur_ns"]), f"{row['frac']:.1%}"

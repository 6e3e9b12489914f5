"""The critical path as a document."""

from __future__ import annotations

from typing import Any

from ...wording.quantities import percent
from ...wording.words import class_label
from ..document import Block, Heading, Lines, Table, section
from .amounts import limits_section, milliseconds

MOST_ROWS = 12
APART = 0.001
"""Share by which the path and the longest rank differ from which it is said what is what."""


def critical_path_document(result: dict[str, Any]) -> list[Block]:
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
    title_of_pieces = (
        f"The {len(longest)} longest of {len(result['pieces'])} pieces, in the order of time"
    )
    return [
        Heading(title),
        Lines([*_because(result), *_length(result)]),
        Table(("what", "ms", "of the step"), by_class),
        Table(("rank", "stage", "ms", "of the step"), by_rank),
        *section(title_of_pieces, Table(headers, longest)),
        *limits_section(result["limits"]),
    ]


def _because(result: dict[str, Any]) -> list[str]:
    """Return why it is this step, where nobody asked for it."""
    if not result["step_because"]:
        return []
    return [
        f"Shown is step {result['step']}: {result['step_because']}",
    ]


def _length(result: dict[str, Any]) -> list[str]:
    """Return what the length is of, where no rank needs as long for the step."""
    path_ns, rank_ns = result["step_time_ns"], result["longest_rank_ns"]
    if abs(path_ns - rank_ns) <= APART * path_ns:
        return []
    return [
        f"Counted {result['step_time_of']}; the rank that takes longest takes "
        f"{milliseconds(rank_ns)} ms",
    ]


def _amount(row: dict[str, Any]) -> tuple[str, str]:
    return milliseconds(row["dur_ns"]), percent(row["frac"])

"""The split of device time as text."""

from __future__ import annotations

from typing import Any

from ...wording.text_table import text_table
from .amounts import NOT_RECORDED, limit_lines, milliseconds
from .page import page


def breakdown_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return the breakdown of the device time of each rank, in milliseconds."""
    names = (
        "span",
        "computation",
        "communication",
        "exposed_communication",
        "exposed_unknown",
        "exposed_memcpy",
        "idle",
    )
    rows = [
        (
            rank,
            *(milliseconds(row[f"{name}_ns"]) for name in names),
            row["device_events"],
            row["unlinked_events"],
        )
        for rank, row in result["ranks"].items()
    ]
    if not any(row["device_events"] for row in result["ranks"].values()):
        return page([NOT_RECORDED, *limit_lines(result["limits"])], markdown=markdown)
    titles = [f"{name.replace('_', ' ')} ms" for name in names]
    headers = ["rank", *titles, "device events", "unlinked"]
    lines = [*text_table(headers, rows, markdown=markdown), *limit_lines(result["limits"])]
    return page(lines, markdown=markdown)

"""The split of device time as a document."""

from __future__ import annotations

from typing import Any

from ..document import Block, Lines, Table
from .amounts import NOT_RECORDED, limits_section, milliseconds


def breakdown_document(result: dict[str, Any]) -> list[Block]:
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
        return [Lines([NOT_RECORDED]), *limits_section(result["limits"])]
    titles = [f"{name.replace('_', ' ')} ms" for name in names]
    headers = ["rank", *titles, "device events", "unlinked"]
    return [Table(headers, rows), *limits_section(result["limits"])]

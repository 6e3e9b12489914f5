"""The collectives as text."""

from __future__ import annotations

from statistics import median
from typing import Any

from ..text_table import text_table
from .amounts import limit_lines, milliseconds


def collectives_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return who waited and who came last, by rank, and the groups they belong to."""
    ranks = [
        (rank, milliseconds(row["wait_ns"]), f"{row['arrived_last']}/{row['count']}")
        for rank, row in result["ranks"].items()
    ]
    groups = [
        (
            group["group_id"],
            group["axis"],
            len(group["ranks"]),
            *_group_sums(result, group["group_id"]),
        )
        for group in result["groups"]
    ]
    headers = ("group", "axis", "ranks", "collectives", "wire ms", "GB/s (bus, median)")
    return "\n".join(
        [
            *text_table(("rank", "waited ms", "arrived last"), ranks, markdown=markdown),
            "",
            *text_table(headers, groups, markdown=markdown),
            *limit_lines(result["limits"]),
        ]
    )


def _group_sums(result: dict[str, Any], group_id: str) -> tuple[int, str, str]:
    own = [row for row in result["collectives"] if row["group_id"] == group_id]
    wire = sum(row["wire_ns"] or 0 for row in own)
    speeds = [speed for row in own if (speed := row["bus_bandwidth_bytes_per_s"]) is not None]
    return len(own), milliseconds(wire), f"{median(speeds) / 1e9:.3f}" if speeds else "unknown"

"""The split of device time as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..document import Block, Lines, Table, section
from .amounts import NOT_RECORDED, limits_section, milliseconds

_TIMES = (
    "span",
    "computation",
    "communication",
    "exposed_communication",
    "exposed_unknown",
    "exposed_memcpy",
    "idle",
)


def breakdown_document(result: dict[str, Any]) -> list[Block]:
    """Return the breakdown of the device time of each rank, in milliseconds."""
    ranks = result["ranks"]
    if not any(row["device_events"] for row in ranks.values()):
        return [Lines([NOT_RECORDED]), *limits_section(result["limits"])]
    table = Table(["rank", *_HEADERS], [(rank, *_cells(row)) for rank, row in ranks.items()])
    return [table, *devices_section(result["devices"]), *limits_section(result["limits"])]


def devices_section(devices: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the same of each device of the ranks that compute on several."""
    rows = [(row["rank"], row["device"], *_cells(row)) for row in devices]
    return section("Each device of one rank", Table(["rank", "device", *_HEADERS], rows))


_HEADERS = [*(f"{name.replace('_', ' ')} ms" for name in _TIMES), "device events", "unlinked"]


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    times = (milliseconds(row[f"{name}_ns"]) for name in _TIMES)
    return (*times, row["device_events"], row["unlinked_events"])

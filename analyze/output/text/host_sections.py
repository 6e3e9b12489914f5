"""Operators, time and annotations of the hosts, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..document import Block, Table, section
from .amounts import milliseconds, shortened


def host_sections(result: Mapping[str, Any]) -> list[Block]:
    """Return all sections that have rows."""
    return [
        *section("Where the host was in its steps", _time(result["host_time"])),
        *section(
            "Operators of the host, most time of their own first",
            _operators(result["host_operators"]),
        ),
        *annotations_section(result),
    ]


def annotations_section(result: Mapping[str, Any]) -> list[Block]:
    """Return what the training code named, with the device work of it."""
    title = "Annotations, with the device work that they launched"
    return section(title, _annotations(result["annotations"]))


def _time(rows: Sequence[Mapping[str, Any]]) -> Table:
    headers = ["rank", "steps ms", "in operators ms", "in calls ms", "in neither ms"]
    times = ("step_ns", "operator_ns", "call_ns", "outside_ns")
    table = [(row["rank"], *(milliseconds(row[name]) for name in times)) for row in rows]
    return Table(headers, table)


def _operators(rows: Sequence[Mapping[str, Any]]) -> Table:
    headers = ["operator", "calls", "own ms", "with inner ms", "ranks"]
    table = [
        (
            shortened(row["operator"]),
            row["calls"],
            milliseconds(row["self_ns"]),
            milliseconds(row["total_ns"]),
            row["ranks"],
        )
        for row in rows
    ]
    return Table(headers, table)


def _annotations(rows: Sequence[Mapping[str, Any]]) -> Table:
    headers = ["annotation", "count", "host ms", "kernels", "projected ms", "device ms", "ranks"]
    table = [
        (
            shortened(row["annotation"]),
            row["count"],
            milliseconds(row["total_ns"]),
            row["kernels"],
            milliseconds(row["projected_ns"]),
            milliseconds(row["device_ns"]),
            row["ranks"],
        )
        for row in rows
    ]
    return Table(headers, table)

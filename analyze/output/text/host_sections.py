"""Operators, time and annotations of the hosts, as tables of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...wording.text_table import text_table
from .amounts import milliseconds, shortened

Section = tuple[str, list[str]]


def host_sections(result: Mapping[str, Any], *, markdown: bool) -> list[Section]:
    """Return title and lines of each table that has rows."""
    made = (
        ("Where the host was in its steps", result["host_time"], _time),
        (
            "Operators of the host, most time of their own first",
            result["host_operators"],
            _operators,
        ),
        (
            "Annotations, with the device work that they launched",
            result["annotations"],
            _annotations,
        ),
    )
    return [(title, make(rows, markdown=markdown)) for title, rows, make in made if rows]


def _time(rows: Sequence[Mapping[str, Any]], *, markdown: bool) -> list[str]:
    headers = ["rank", "steps ms", "in operators ms", "in calls ms", "in neither ms"]
    times = ("step_ns", "operator_ns", "call_ns", "outside_ns")
    table = [(row["rank"], *(milliseconds(row[name]) for name in times)) for row in rows]
    return text_table(headers, table, markdown=markdown)


def _operators(rows: Sequence[Mapping[str, Any]], *, markdown: bool) -> list[str]:
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
    return text_table(headers, table, markdown=markdown)


def _annotations(rows: Sequence[Mapping[str, Any]], *, markdown: bool) -> list[str]:
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
    return text_table(headers, table, markdown=markdown)

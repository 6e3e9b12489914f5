"""The kernels of a capture as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshscope.probe.schema.printable import printable

from ..text_table import text_table
from .amounts import NOT_RECORDED, limit_lines, milliseconds
from .page import page

_NAME_LENGTH = 60
_RANK_TIMES = ("span", "busy", "idle", "starved", "launch_bound")


def kernels_to_text(result: Mapping[str, Any], *, markdown: bool = False) -> str:
    """Return ranks, phases and the longest kernels; times in ms, percentiles in us."""
    if not result["kernels"]:
        nothing = [NOT_RECORDED, *limit_lines(result["limits"])]
        return page(nothing, markdown=markdown)
    shown, count = len(result["kernels"]), result["kernel_count"]
    sections = (
        ("Devices", _ranks(result["ranks"], markdown=markdown)),
        ("Phases", _places(result["places"], markdown=markdown)),
        (
            f"Kernels: the longest {shown} of {count}",
            _kernels(result["kernels"], markdown=markdown),
        ),
    )
    lines = []
    for title, table in sections:
        lines += [f"## {title}" if markdown else title, *([""] if markdown else []), *table, ""]
    return page([*lines[:-1], *limit_lines(result["limits"])], markdown=markdown)


def _ranks(ranks: Mapping[str, Mapping[str, Any]], *, markdown: bool) -> list[str]:
    headers = ["rank", *(f"{name.replace('_', '-')} ms" for name in _RANK_TIMES)]
    headers += ["launch-bound", "events", "unlinked", "unknown kind ms"]
    rows = [
        (
            rank,
            *(milliseconds(row[f"{name}_ns"]) for name in _RANK_TIMES),
            _percent(row["launch_bound_frac"]),
            row["device_events"],
            row["unlinked_events"],
            milliseconds(row["unknown_ns"]),
        )
        for rank, row in ranks.items()
    ]
    return text_table(headers, rows, markdown=markdown)


def _places(places: Sequence[Mapping[str, Any]], *, markdown: bool) -> list[str]:
    headers = ["phase", "axis", "stage", "count", "total ms", "of busy", "of steps"]
    rows = [
        (
            place["phase"],
            _or_dash(place["axis"]),
            _or_dash(place["stage"]),
            place["count"],
            milliseconds(place["total_ns"]),
            _percent(place["busy_frac"]),
            _percent(place["step_frac"]),
        )
        for place in places
    ]
    return text_table(headers, rows, markdown=markdown)


def _kernels(kernels: Sequence[Mapping[str, Any]], *, markdown: bool) -> list[str]:
    headers = ["kernel", "phase", "axis", "stage", "count", "total ms", "of busy", "of steps"]
    headers += ["p50 us", "p99 us", "delay p50 us", "ranks", "slowest", "over median"]
    rows = [
        (
            _shortened(row["name"]),
            _phase(row),
            _or_dash(row["axis"]),
            _or_dash(row["stage"]),
            row["count"],
            milliseconds(row["total_ns"]),
            _percent(row["busy_frac"]),
            _percent(row["step_frac"]),
            _microseconds(row["p50_ns"]),
            _microseconds(row["p99_ns"]),
            _microseconds(row["delay_p50_ns"]),
            row["ranks"],
            f"rank {row['slowest_rank']}",
            f"x{row['slowest_over_median']:.2f}",
        )
        for row in kernels
    ]
    return text_table(headers, rows, markdown=markdown)


def _phase(row: Mapping[str, Any]) -> str:
    """Return the phase, and what the kernel is where that is not plain."""
    plain = ("compute", row["phase"])
    return row["phase"] if row["category"] in plain else f"{row['phase']} ({row['category']})"


def _shortened(name: str) -> str:
    """Return a name on one line; the kernel of a template is at its start."""
    line = printable(" ".join(name.split()))
    return line if len(line) <= _NAME_LENGTH else line[: _NAME_LENGTH - 1] + "…"


def _microseconds(time_ns: float | None) -> str:
    return "unknown" if time_ns is None else f"{time_ns / 1e3:.1f}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)

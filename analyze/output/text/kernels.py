"""The kernels of a capture as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...wording.text_table import text_table
from .amounts import NOT_RECORDED, limit_lines, milliseconds, shortened
from .host_sections import host_sections
from .page import page

_RANK_TIMES = ("span", "busy", "idle", "starved", "launch_bound")


def kernels_to_text(result: Mapping[str, Any], *, markdown: bool = False) -> str:
    """Return ranks, phases and the longest kernels; times in ms, percentiles in us."""
    if not result["kernels"]:
        host = _titled(host_sections(result, markdown=markdown), markdown=markdown)
        return page([NOT_RECORDED, *host, *limit_lines(result["limits"])], markdown=markdown)
    shown, count = len(result["kernels"]), result["kernel_count"]
    sections: tuple[tuple[str, list[str]], ...] = (
        ("Devices", _ranks(result["ranks"], markdown=markdown)),
        ("Phases", _places(result["places"], markdown=markdown)),
        (
            f"Kernels: the longest {shown} of {count}",
            _kernels(result["kernels"], markdown=markdown),
        ),
    )
    if result["operators"]:
        shown, count = len(result["operators"]), result["operator_count"]
        title = f"Operators that launched them: the longest {shown} of {count}"
        sections += ((title, _operators(result["operators"], markdown=markdown)),)
    if result["host_waits"]:
        title = "Calls of the host that wait for the device"
        sections += ((title, _host_waits(result["host_waits"], markdown=markdown)),)
    sections += tuple(
        one for one in host_sections(result, markdown=markdown) if "nnotation" in one[0]
    )
    lines = _titled(sections, markdown=markdown)
    return page([*lines[:-1], *limit_lines(result["limits"])], markdown=markdown)


def _titled(sections: Sequence[tuple[str, list[str]]], *, markdown: bool) -> list[str]:
    lines = []
    for title, table in sections:
        lines += [f"## {title}" if markdown else title, *([""] if markdown else []), *table, ""]
    return lines


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
            shortened(row["name"]),
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


def _operators(operators: Sequence[Mapping[str, Any]], *, markdown: bool) -> list[str]:
    headers = ["operator", "shapes", "calls", "kernels", "total ms", "of busy"]
    headers += ["TFLOP/s", "of peak", "beyond peak ms"]
    rows = [
        (
            shortened(row["operator"] or "none recorded"),
            _or_dash(row["shapes"] and shortened(row["shapes"])),
            row["calls"] or "–",
            row["kernels"],
            milliseconds(row["total_ns"]),
            _percent(row["busy_frac"]),
            _or_dash(row["flops_per_s"] and f"{row['flops_per_s'] / 1e12:.1f}"),
            _or_dash(row["peak_frac"] and _percent(row["peak_frac"])),
            _or_dash(row["over_peak_ns"] and milliseconds(row["over_peak_ns"])),
        )
        for row in operators
    ]
    return text_table(headers, rows, markdown=markdown)


def _host_waits(waits: Sequence[Mapping[str, Any]], *, markdown: bool) -> list[str]:
    headers = [
        "call",
        "inside",
        "phase",
        "count",
        "blocked ms",
        "starved ms",
        "of span",
        "ranks",
    ]
    rows = [
        (
            shortened(row["call"]),
            _or_dash(row["operator"] and shortened(row["operator"])),
            row["phase"],
            row["count"],
            milliseconds(row["blocked_ns"]),
            milliseconds(row["starved_ns"]),
            _percent(row["span_frac"]),
            row["ranks"],
        )
        for row in waits
    ]
    return text_table(headers, rows, markdown=markdown)


def _phase(row: Mapping[str, Any]) -> str:
    """Return the phase, and what the kernel is where that is not plain."""
    plain = ("compute", row["phase"])
    return row["phase"] if row["category"] in plain else f"{row['phase']} ({row['category']})"


def _microseconds(time_ns: float | None) -> str:
    return "unknown" if time_ns is None else f"{time_ns / 1e3:.1f}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)

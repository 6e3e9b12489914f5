"""The kernels of a capture as a document.

Operators, time and annotations of the hosts, as tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...wording.quantities import percent
from ..document import Block, Lines, Table, section
from .amounts import NOT_RECORDED, limits_section, milliseconds, shortened
from .breakdown import devices_section


def host_sections(result: Mapping[str, Any]) -> list[Block]:
    """Return all sections that have rows."""
    return [
        *section("Where the host was in its steps", _time(result["host_time"])),
        *section(
            "Operators of the host, most time of their own first",
            _host_operators(result["host_operators"]),
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


def _host_operators(rows: Sequence[Mapping[str, Any]]) -> Table:
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


_RANK_TIMES = ("span", "busy", "idle", "starved", "launch_bound")


def kernels_document(result: Mapping[str, Any]) -> list[Block]:
    """Return ranks, phases and the longest kernels; times in ms, percentiles in us."""
    if not result["kernels"]:
        host = host_sections(result)
        return [Lines([NOT_RECORDED]), *host, *limits_section(result["limits"])]
    kernels, operators = result["kernels"], result["operators"]
    longest = f"Kernels: the longest {len(kernels)} of {result['kernel_count']}"
    launched = (
        f"Operators that launched them: the longest {len(operators)} of {result['operator_count']}"
    )
    return [
        *section("Devices", _ranks(result["ranks"])),
        *devices_section(result["devices"]),
        *section("Phases (kernels that run at once count each)", _places(result["places"])),
        *section(longest, _kernels(kernels)),
        *section(launched, _operators(operators)),
        *section("Calls of the host that wait for the device", _host_waits(result["host_waits"])),
        *annotations_section(result),
        *limits_section(result["limits"]),
    ]


def _ranks(ranks: Mapping[str, Mapping[str, Any]]) -> Table:
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
    return Table(headers, rows)


def _places(places: Sequence[Mapping[str, Any]]) -> Table:
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
    return Table(headers, rows)


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> Table:
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
    return Table(headers, rows)


def _operators(operators: Sequence[Mapping[str, Any]]) -> Table:
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
    return Table(headers, rows)


def _host_waits(waits: Sequence[Mapping[str, Any]]) -> Table:
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
    return Table(headers, rows)


def _phase(row: Mapping[str, Any]) -> str:
    """Return the phase, and what the kernel is where that is not plain."""
    plain = ("compute", row["phase"])
    return row["phase"] if row["category"] in plain else f"{row['phase']} ({row['category']})"


def _microseconds(time_ns: float | None) -> str:
    return "unknown" if time_ns is None else f"{time_ns / 1e3:.1f}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else percent(share)


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)

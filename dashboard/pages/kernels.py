"""The kernels of a run: what did the devices work on, how fast, and what did they wait for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from meshscope.analyze.output.json.kernels import NO_KERNELS
from meshscope.analyze.wording.words import capitalised, sentence

from ..plain import units
from ..runs.loaded_run import LoadedRun
from ..view.state import ViewState
from .shell import card, empty, name_cell, table

_MOST_RANKS = 64
_NONE = "\N{EN DASH}"
_TIMES = ("span", "busy", "idle", "starved", "launch_bound")

Row = Mapping[str, Any]


def layout(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the page of kernels."""
    result = run.kernels()
    without = sentence(str(NO_KERNELS))
    limits = [limit for limit in result["limits"] if sentence(limit) != without]
    content: list[Component] = [
        html.H1("What the devices worked on", className="ms-title"),
    ]
    if result["kernels"]:
        content += [
            _operators(result),
            _host_waits(result["host_waits"]),
            _kernels(result),
            _places(result["places"]),
            *_devices(result["devices"]),
            _ranks(result["ranks"], state.rank),
        ]
    else:
        content.append(empty("No kernels were recorded", without))
    if limits:
        listed = html.Ul([html.Li(limit) for limit in limits], className="ms-limits")
        content.append(card("What this result could not see", [listed]))
    return content


def _operators(result: Row) -> Component:
    rows = [
        [
            name_cell(row["operator"], "none recorded"),
            name_cell(row["shapes"]),
            f"{row['calls']:,}" if row["calls"] else _NONE,
            units.duration(row["total_ns"]),
            units.percent(row["busy_frac"]),
            _or_none(row["flops_per_s"], lambda speed: units.rate(speed, "FLOP/s")),
            _or_none(row["peak_frac"], units.percent),
            _or_none(row["over_peak_ns"], units.duration),
        ]
        for row in result["operators"]
    ]
    title = "Operators, by the device time that they launched"
    if not rows:
        return card(title, [empty("No operators were recorded", "The trace has kernels alone.")])
    columns = [
        "Operator",
        "Input shapes",
        "Calls",
        "Device time",
        "Of busy",
        "Speed",
        "Of peak",
        "Beyond peak",
    ]
    note = f"{_longest(rows, result['operator_count'])} Beyond peak is the time above what the arithmetic takes at peak."
    if result["peak_flops"]:
        note += (
            f" The peak is {units.rate(result['peak_flops'], 'FLOP/s')} ({result['peak_source']})."
        )
    return card(title, [table(columns, rows, numeric_from=2)], note=note)


def _host_waits(waits: Sequence[Row]) -> Component:
    rows = [
        [
            name_cell(row["call"]),
            name_cell(row["operator"]),
            row["phase"],
            f"{row['count']:,}",
            units.duration(row["blocked_ns"]),
            units.duration(row["starved_ns"]),
            units.percent(row["span_frac"]),
            row["ranks"],
        ]
        for row in waits
    ]
    title = "Host calls that wait for the device"
    if not rows:
        return card(
            title,
            [empty("No call waited", "No recorded host call waits for the device.")],
        )
    columns = ["Call", "Inside", "Phase", "Count", "Blocked", "Starved", "Of span", "Ranks"]
    note = "Blocked: duration of the calls. Cost: time the device then had no work."
    return card(title, [table(columns, rows, numeric_from=3)], note=note)


def _kernels(result: Row) -> Component:
    rows = [
        [
            name_cell(row["name"]),
            _place(row),
            f"{row['count']:,}",
            units.duration(row["total_ns"]),
            units.percent(row["busy_frac"]),
            units.duration(row["p50_ns"]),
            units.duration(row["p99_ns"]),
            units.duration(row["delay_p50_ns"]),
            f"rank {row['slowest_rank']}, {row['slowest_over_median']:.2f} x",
        ]
        for row in result["kernels"]
    ]
    columns = [
        "Kernel",
        "Where",
        "Count",
        "Device time",
        "Of busy",
        "p50",
        "p99",
        "Delay p50",
        "Slowest",
    ]
    note = f"{_longest(rows, result['kernel_count'])} Slowest is against the median of the ranks that ran it."
    return card("Kernels", [table(columns, rows, numeric_from=2)], note=note)


def _places(places: Sequence[Row]) -> Component:
    rows = [
        [
            _place(row),
            f"{row['count']:,}",
            units.duration(row["total_ns"]),
            units.percent(row["busy_frac"]),
            units.percent(row["step_frac"]),
        ]
        for row in places
    ]
    columns = ["Where", "Count", "Device time", "Of busy", "Of steps"]
    note = "Kernels that run at once count each."
    return card("Phases of the step", [table(columns, rows)], note=note)


def _ranks(ranks: Mapping[str, Row], selected: int | None) -> Component:
    """Return the devices of the ranks, the selected one first."""
    order = sorted(ranks, key=lambda rank: (rank != str(selected), int(rank)))
    rows = [
        [
            f"rank {rank}",
            *(units.duration(ranks[rank][f"{name}_ns"]) for name in _TIMES),
            units.percent(ranks[rank]["launch_bound_frac"]),
            units.duration(ranks[rank]["unknown_ns"]),
        ]
        for rank in order[:_MOST_RANKS]
    ]
    columns = [
        "Device",
        "Span",
        "Busy",
        "Idle",
        "Starved",
        "Launch-bound",
        "Of span",
        "Unknown kind",
    ]
    note = "Starved: no launched work was waiting. Launch-bound: the host was launching meanwhile."
    if len(order) > _MOST_RANKS:
        note += f" {_MOST_RANKS} of {len(order)} ranks; the JSON has all."
    return card("Devices", [table(columns, rows)], note=note)


_OF_DEVICE = (
    "span",
    "computation",
    "exposed_communication",
    "exposed_memcpy",
    "exposed_unknown",
    "idle",
)


def _devices(devices: Sequence[Row]) -> list[Component]:
    """Return the devices of the ranks that compute on several, each by itself; nothing where none does."""
    if not devices:
        return []
    rows = [
        [
            f"rank {row['rank']}, device {row['device']}",
            *(units.duration(row[f"{name}_ns"]) for name in _OF_DEVICE),
            units.percent(row["idle_ns"] / row["span_ns"]),
        ]
        for row in devices[:_MOST_RANKS]
    ]
    columns = ["Device", "Span", "Compute", "Communication alone", "Copies alone", "Unknown alone"]
    columns += ["Idle", "Of span"]
    more = len(devices) - len(rows)
    note = (
        f"Each by itself, over the span of its rank.{f' {more} more are left out.' if more else ''}"
    )
    return [card("Each device of one rank", [table(columns, rows)], note=note)]


def _place(row: Row) -> str:
    """Return phase, axis and stage of device work, as far as they are known."""
    axis = "" if row["axis"] is None else f" {str(row['axis']).upper()}"
    stage = "" if row["stage"] is None else f", stage {row['stage']}"
    return f"{row['phase']}{axis}{stage}"


def _longest(rows: Sequence[object], count: int) -> str:
    return capitalised(
        f"all {count}." if len(rows) == count else f"the longest {len(rows)} of {count}."
    )


def _or_none(value: float | None, words: Any) -> str:
    """Return a number in words; what has none, such as the speed of a copy, is a dash."""
    return _NONE if value is None else str(words(value))

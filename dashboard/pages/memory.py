"""The memory of a run: what does each stage hold, what should it, and who runs out first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.wording.words import joined
from meshscope.probe.schema.errors import MeshscopeError

from ..figures.memory import memory_after_balance, memory_bars, memory_over_time, parts_of
from ..plain import units
from ..plain.shown_errors import shown_from
from ..runs.loaded_run import LoadedRun
from .shell import card, chart, empty, table

_NONE = "\N{EN DASH}"
_SOON_MS = 50
"""After the page is drawn, which must not wait for this part."""

Row = Mapping[str, Any]


def layout(run: LoadedRun) -> list[Component]:
    """Return the page of memory."""
    result = run.memory()
    content: list[Component] = [
        html.H1("What the stages hold", className="ms-title"),
        dcc.Store(id="memory-opened"),
    ]
    if result["stages"]:
        content += [
            _stages(result),
            _differences(result),
            *_room(result["headroom"]),
            *_time(result["over_time"]),
            _terms(result),
        ]
    else:
        why = "The probe samples it between phases; PyTorch memory snapshots contain it too."
        content.append(empty("No memory was recorded", why))
    if run.trace.layout is not None and run.trace.layout.pp > 1:
        content.append(_balance_to_come())
    return content


def balance_content(run: LoadedRun, folder: Path) -> list[Component]:
    """Return the memory and the step before and after the best layer split, or why there is none.

    Args:
        run: The run.
        folder: Of the runs, which errors leave out.
    """
    try:
        result = run.balance()
    except MeshscopeError as error:
        return [empty("No layer split was searched", str(shown_from(error, folder)))]
    current, proposals = result["current"], result["proposals"]
    if not proposals:
        return [empty("No split gains more than the noise", f"Today: {_listed(current)}.")]
    best = proposals[0]
    rows = [
        [word, _listed(one), units.duration(one["step_time_ns"]), _interval(one), _fullest(one)]
        for word, one in [("now", current), *(("then", one) for one in proposals)]
    ]
    columns = ["", "Layers by stage", "Step", "Gain", "Fullest stage"]
    drawn: list[Component] = []
    if best["memory_by_stage_bytes"] is not None:
        caption = f"Fullest stage {_fullest(current)} now, {_fullest(best)} with {_listed(best)}."
        drawn = [chart(memory_after_balance(current, best), caption, "memory-balance-graph")]
    return [*drawn, table(columns, rows, numeric_from=2)]


def _balance_to_come() -> Component:
    waiting = [
        dcc.Interval(id="memory-wait", interval=_SOON_MS, max_intervals=1),
        dcc.Loading(html.Div(html.P("Searching layer splits …"), id="memory-balance")),
    ]
    note = "Same as meshscope balance. Layers stated in the run's topology.toml are used."
    return card("Before and after a balance", waiting, note=note)


def _listed(one: Row) -> str:
    return ",".join(map(str, one["layers"]))


def _interval(one: Row) -> str:
    if "gain_frac" not in one:
        return _NONE
    low, high = one["gain_low_frac"], one["gain_high_frac"]
    return f"{units.percent(one['gain_frac'])} ({units.percent(low)} to {units.percent(high)})"


def _fullest(one: Row) -> str:
    words = units.size(one["memory_bytes"]) if one["memory_bytes"] is not None else units.UNKNOWN
    return f"{words} (over the cap)" if one["fits"] is False else words


def _stages(result: Row) -> Component:
    rows = result["stages"]
    fullest = max(rows, key=lambda row: _held(row) or 0.0)
    caption = f"{_name(fullest)} holds most: {units.size(_held(fullest))}."
    if fullest["capacity_bytes"] is not None:
        caption += (
            f" The dashed line is the capacity, {units.size(float(fullest['capacity_bytes']))}."
        )
    note = "Click a bar for the terms of its stage."
    return card("By stage and term", [chart(memory_bars(rows), caption, "memory-graph")], note=note)


def _name(row: Row) -> str:
    return f"Stage {row['stage']}" if row["stage"] >= 0 else "A rank without a stage"


def _held(row: Row) -> float | None:
    for name in ("steady_bytes", "peak_bytes", "rss_bytes"):
        if row[name] is not None:
            return float(row[name])
    return None


def _differences(result: Row) -> Component:
    title, expectation = "Expected beside measured", result["expectation"]
    if expectation["unknown_because"]:
        reason = str(expectation["unknown_because"])
        why = f"{reason[:1].upper()}{reason[1:]}. State it in topology.toml of the run."
        return card(title, [empty("Expected memory is not known", why)])
    rows = [
        [
            _name(row),
            f"{row['in_flight']:g}",
            _measured(row),
            units.size(row["expected_bytes"]),
            _off(row["difference_bytes"], row["expected_bytes"]),
            _or_none(row["reserved_bytes"]),
            _or_none(row["device_used_bytes"]),
            f"{units.size(row['expected_reserved_low_bytes'])} to "
            f"{units.size(row['expected_reserved_high_bytes'])}",
        ]
        for row in result["stages"]
        if row["expected_bytes"] is not None
    ]
    columns = ["Stage", "In flight", "Measured", "Expected", "Difference"]
    columns += ["Reserved", "Device used", "Expected reserved"]
    note = "Expected by the formulas of meshscope plan."
    for word, settings in (
        ("Assumed", expectation["assumed"]),
        ("Inferred", expectation["inferred"]),
    ):
        if settings:
            note += f" {word}: {joined(settings)}."
    return card(title, [table(columns, rows)], note=note)


def _measured(row: Row) -> str:
    """Return what the allocator held; the resident set has the programs too, which no formula expects."""
    steady = row["steady_bytes"]
    words = units.size(row["peak_bytes"] if steady is None else steady)
    return f"at most {words}" if row["is_steady"] is False else words


def _off(difference: float | None, expected: float) -> str:
    if difference is None:
        return units.UNKNOWN
    return units.signed_percent(difference / expected)


def _or_none(size: float | None) -> str:
    return _NONE if size is None else units.size(float(size))


def _room(room: Row | None) -> list[Component]:
    """Return who runs out first, nothing where that is not known."""
    if room is None:
        return []
    rows = [
        [name, f"{room[key]['now']:,}", f"{room[key]['surely']:,}", f"{room[key]['at_most']:,}"]
        for name, key in (
            ("Sequences of a microbatch", "microbatch_size"),
            ("Tokens of a sequence", "seq_len"),
        )
    ]
    columns = ["Size", "Now", "Surely fits", "At most"]
    return [card(f"Stage {room['stage']} runs out first", [table(columns, rows)])]


def _time(series: Sequence[Row]) -> list[Component]:
    if not any(len(one["steps"]) > 1 for one in series):
        return []
    caption = "The most that a rank of each stage held in a step."
    return [card("Over time", [chart(memory_over_time(series), caption, "memory-time-graph")])]


def _terms(result: Row) -> Component:
    """Return what every stage holds by category and by formula, each behind its name."""
    return card("Term by term", [_opened(row, result["terms"]) for row in result["stages"]])


def _opened(row: Row, terms: Mapping[str, Sequence[Row]]) -> Component:
    measured, expected = parts_of(row)
    by_category = [
        [name, _or_none(measured.get(name)), _or_none(expected.get(name))]
        for name in dict.fromkeys([*measured, *expected])
        if name in measured or expected.get(name)
    ]
    content = [table(["Category", "Measured", "Expected"], by_category)]
    by_formula = [
        [one["name"], one["category"], units.size(one["bytes"]), one["formula"], one["source"]]
        for one in terms.get(str(row["stage"]), ())
    ]
    if by_formula:
        columns = ["Term", "Of", "Size", "Formula", "Source"]
        content.append(table(columns, by_formula, numeric_from=len(columns)))
    return html.Details(
        [html.Summary(f"{_name(row)}: {_measured(row)}"), *content],
        id=f"memory-terms-{row['stage']}",
        className="ms-details",
    )

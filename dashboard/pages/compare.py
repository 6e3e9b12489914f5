"""Two runs side by side: by how much is the step of this one longer, and in what?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.findings.comparison import unlike
from meshscope.analyze.output.text.comparison import NO_INTERVAL
from meshscope.analyze.wording.words import class_label, counted, sentence
from meshscope.probe.schema.errors import MeshscopeError

from ..answers.views import comparison, with_before
from ..figures.change import Change, change_waterfall, is_beyond_chance, signed
from ..figures.theme import SEVERITY_COLOUR
from ..plain import units
from ..runs.loaded_run import LoadedRun, is_slow_to_compare
from ..runs.store import RunStore
from ..view.addresses import page_address
from ..view.state import ViewState
from .shell import (
    card,
    chart,
    empty,
    key_numbers,
    name_cell,
    notice,
    table,
)

_STATE_COLOUR = {"new": SEVERITY_COLOUR["critical"], "gone": "green", "both": "gray"}
_VERDICT_COLOUR = {
    "pass": "green",
    "improved": "green",
    "fail": SEVERITY_COLOUR["critical"],
    "inconclusive": "gray",
    "incomparable": "gray",
}
_SOON_MS = 50
_LEAST_NS = 0.5
"""Change of a class, below which it has no bar; the table has it."""


def layout(store: RunStore, run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the page that compares a run with another one of its folder."""
    state = with_before(store, run, state)
    others = [
        entry.run_id
        for entry in store.entries(0)
        if entry.state != "unreadable" and entry.run_id != run.run_id
    ]
    controls = [
        html.H1("Against another run", className="ms-title"),
        html.Span(className="ms-spring"),
        dmc.Select(
            id="compare-before",
            data=others,
            value=state.before,
            searchable=True,
            allowDeselect=False,
            size="xs",
            w=280,
            disabled=not others,
            placeholder="the run that came before",
            **{"aria-label": "run to compare with"},
        ),
    ]
    return [
        # A location of its own, so that only this page redraws when its query changes.
        dcc.Location(id="compare-url", refresh=False),
        # The query that the control shows, which tells a change by the page from one by hand.
        dcc.Store(id="compare-drawn", data=state.query()),
        html.Div(controls, className="ms-title-row ms-controls"),
        *_content(store, run, state, are_others=bool(others)),
    ]


def _content(
    store: RunStore, run: LoadedRun, state: ViewState, *, are_others: bool
) -> list[Component]:
    """Return what depends on the query; where runs have to be measured for it, what asks for it."""
    before = None
    if state.before is not None and state.before != run.run_id:
        with suppress(MeshscopeError):
            before = store.get(state.before) if store.is_analysed(state.before) else None
    is_slow = is_slow_to_compare(run) or (before is not None and is_slow_to_compare(before))
    if state.before is None or not is_slow:
        found = content(store, run, state, are_others=are_others)
        return [html.Div(found, id="compare-content")]
    words = html.P(f"Comparing with {state.before} …")
    return [
        dcc.Interval(id="compare-wait", interval=_SOON_MS, max_intervals=1),
        dcc.Loading(html.Div(words, id="compare-content")),
    ]


def content(
    store: RunStore, run: LoadedRun, state: ViewState, *, are_others: bool = True
) -> list[Component]:
    """Return what depends on the query: both runs, the change by class, findings, operators."""
    state = with_before(store, run, state)
    if state.before is None:
        what = "No earlier run has this mesh: choose one" if are_others else "There is no other run"
        why = "Two runs in one folder are compared class by class. Runs of other folders: meshscope compare BEFORE AFTER."
        return [empty(what, why)]
    try:
        result = comparison(store, run, state)
    except MeshscopeError as error:
        return [notice(f"These runs cannot be compared: {error}")]
    return [
        *_unlike(result["setup"]),
        _gate(result),
        _key_numbers(result),
        _classes(result),
        _findings(result, run.run_id, state),
        *_changes("Operators", "operator", result["operators"], result["error_ns"]),
        *_changes("Kernels", "name", result["kernels"], result["error_ns"]),
        *_setup(result["setup"]),
        *_limits(result["limits"]),
    ]


def _unlike(setup: dict[str, dict[str, Any]]) -> list[Component]:
    """Return that two jobs are not alike, and in what; nothing where they are."""
    words = unlike(setup)
    return [] if words is None else [notice(sentence(str(words)))]


def _gate(result: dict[str, Any]) -> Component:
    """Return what a gate with the run before as its baseline says."""
    gate = result["gate"]
    verdict = gate["verdict"] or "inconclusive"
    badge = dmc.Badge(verdict, color=_VERDICT_COLOUR[verdict], variant="light", radius="sm")
    words = [gate["why"] or gate["error"], *gate.get("notes", ())]
    note = "As meshscope gate judges it, with one run as the baseline. Five runs would show the noise between runs."
    return card(
        "Gate", [html.Div([badge, html.Span(" ".join(words))], className="ms-gate")], note=note
    )


def _key_numbers(result: dict[str, Any]) -> Component:
    numbers = []
    # Copies and runs of one name are distinguished by what they are called in this folder.
    sides = (("before", "Before", "before_id"), ("after", "After: this run", "run_id"))
    for name, words, own in sides:
        run = result[name]
        mfu = "" if run["mfu"] is None else f", MFU {units.percent(run['mfu'])}"
        note = (
            f"{result[own]}: {counted(run['ranks'], 'rank')}, {counted(run['steps'], 'step')}{mfu}"
        )
        numbers.append((words, units.duration(run["step_time_ns"]), note))
    numbers.append(("Change of the step", signed(result["change_ns"]), _chance(result)))
    return key_numbers(numbers)


def _chance(result: dict[str, Any]) -> str:
    share = units.signed_percent(result["change_frac"])
    if result["error_ns"] is None:
        return f"{share}; {NO_INTERVAL}"
    return f"{share}; ± {units.duration(result['error_ns'])} from noise between steps"


def _classes(result: dict[str, Any]) -> Component:
    sides = [result[side]["step_time_ns"] for side in ("before", "after")]
    rows = [
        (class_label(row["class"]), row["before_ns"], row["after_ns"], row)
        for row in result["classes"]
    ]
    has_interval = result["error_ns"] is not None
    cells = [
        _class_cells(*row, has_interval=has_interval)
        for row in [*rows, ("the step", *sides, result)]
    ]
    changed = [
        Change(
            label,
            row["change_ns"],
            f"{units.duration(before)} → {units.duration(after)}",
            row["error_ns"],
        )
        for label, before, after, row in rows
        if abs(row["change_ns"]) >= _LEAST_NS
    ]
    total = Change("step time", result["change_ns"], " → ".join(map(units.duration, sides)), None)
    parts = sum(row["change_ns"] for row in result["classes"])
    caption = f"The changes sum to {signed(parts)}; {_grey(result)}."
    columns = ["Class", "Before", "After", "Change", "±"]
    drawn = [
        chart(change_waterfall(changed, total), caption, "change-graph"),
        table(columns, cells),
    ]
    return card("Where the step changed", drawn)


def _grey(result: dict[str, Any]) -> str:
    """Return what grey says in the figure."""
    if result["error_ns"] is None:
        return f"grey means {NO_INTERVAL}"
    return "grey ones are within their ±, so they may be noise"


def _class_cells(
    label: str, before: float, after: float, row: dict[str, Any], *, has_interval: bool
) -> list[Any]:
    return [
        label,
        units.duration(before),
        units.duration(after),
        _change_cell(row["change_ns"], row["error_ns"]),
        units.duration(row["error_ns"]) if has_interval else NO_INTERVAL,
    ]


def _change_cell(change_ns: float, error_ns: float | None) -> Component:
    """Return a change in the colour of its direction; grey where chance alone may make as much."""
    style = "ms-longer" if change_ns > 0 else "ms-shorter" if change_ns < 0 else ""
    if not is_beyond_chance(change_ns, error_ns):
        style = "ms-no-change"
    return html.Span(signed(change_ns), className=style)


def _findings(result: dict[str, Any], run_id: str, state: ViewState) -> Component:
    rows = [
        [
            dmc.Badge(
                row["state"], color=_STATE_COLOUR[row["state"]], variant="light", radius="sm"
            ),
            row["claim"],
            units.duration(row["before_ns"]),
            units.duration(row["after_ns"]),
        ]
        for row in result["findings"]
    ]
    if not rows:
        return card("Findings", [empty("No findings", "Neither run has a finding.")])
    links = [
        dcc.Link(
            f"Findings of {name}", href=page_address(name, "findings", shown), className="ms-link"
        )
        for name, shown in ((result["before_id"], ViewState()), (run_id, state))
    ]
    columns = ["", "Finding", "Cost before", "Cost after"]
    return card(
        "Findings", [table(columns, rows, numeric_from=2), html.Div(links, className="ms-links")]
    )


def _changes(
    title: str, key: str, changes: Sequence[dict[str, Any]], step_error_ns: float | None
) -> list[Component]:
    """Return the most changed operators or kernels; nothing where a run has none."""
    has_shapes = key == "operator"
    # Without a second step nothing says by how much these differ between steps.
    error_ns = None if step_error_ns is None else 0.0
    rows = [
        [
            name_cell(row[key], "none recorded"),
            *([name_cell(row["shapes"])] if has_shapes else []),
            f"{row['calls_before']:.4g} → {row['calls_after']:.4g}",
            units.duration(row["before_ns"]),
            units.duration(row["after_ns"]),
            *(_change_cell(row[name], error_ns) for name in ("change_ns", "more_ns", "longer_ns")),
        ]
        for row in changes
    ]
    if not rows:
        return []
    names = ["Operator", "Input shapes"] if has_shapes else ["Kernel"]
    columns = [*names, "Calls", "Before", "After", "Change", "More calls", "Longer calls"]
    note = "Device time per rank and step, largest change first. More calls and longer calls count together."
    return [card(title, [table(columns, rows, numeric_from=len(names))], note=note)]


def _setup(setup: dict[str, dict[str, Any]]) -> list[Component]:
    """Return what differs in how the runs were set up; nothing where all that is known is equal."""
    rows = [
        [name.replace("_", " "), *(_or_unknown(pair[side]) for side in ("before", "after"))]
        for name, pair in setup.items()
    ]
    return (
        [card("What differs in the setup", [table(["", "Before", "After"], rows)])] if rows else []
    )


def _or_unknown(value: object) -> str:
    return units.UNKNOWN if value is None else str(value)


def _limits(limits: Sequence[str]) -> list[Component]:
    if not limits:
        return []
    listed = html.Ul([html.Li(limit) for limit in limits], className="ms-limits")
    return [card("What this comparison could not see", [listed])]

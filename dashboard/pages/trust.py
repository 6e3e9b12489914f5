"""The trust page: can I believe this?"""

from __future__ import annotations

from typing import Any

from dash import html
from dash.development.base_component import Component

from meshscope.analyze.wording.words import counted

from ..answers.trust import trust
from ..plain import units
from ..runs.loaded_run import LoadedRun
from ..view.addresses import csv_address
from ..view.state import ViewState
from .shell import card, empty, key_numbers, table

_MOST_RANKS = 64
_MOST_NAMED = 16
_NONE = "–"


def layout(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the trust page."""
    facts = trust(run)
    return [
        html.H1("Can these numbers be believed?", className="ms-title"),
        key_numbers(_numbers(facts)),
        _coverage(facts),
        _overhead(run, facts, state),
        _losses(facts),
        _clocks(facts),
        _conventions(facts),
        _assumptions(facts),
        _limits(facts),
    ]


def _numbers(facts: dict[str, Any]) -> list[tuple[str, str, str]]:
    coverage, cost = facts["coverage"], facts["overhead"]
    world = coverage["world_size"]
    ranks = f"{coverage['ranks_captured']} of {world}" if world else str(coverage["ranks_captured"])
    clock = [row["error_ns"] for row in facts["clocks"]]
    most = "the probe did not measure itself"
    if cost["most_rank"] is not None:
        most = f"at most {units.percent(cost['most_frac'], 2)}, on rank {cost['most_rank']}"
    return [
        ("Ranks captured", ranks, _missing_words(coverage["missing_ranks"])),
        ("Probe overhead", units.percent(cost["mean_frac"], 2), most),
        (
            "Clock error",
            units.duration(max(clock)) if clock else "none corrected",
            "largest bound of a corrected clock" if clock else "no clock was moved",
        ),
        (
            "Not recorded",
            counted(len(facts["losses"]), "limit") if facts["losses"] else "none",
            "listed below" if facts["losses"] else "no drop, nothing left out",
        ),
        (
            "Replay error",
            units.percent(facts["model_error_frac"], 2),
            "measured minus replayed step time"
            if facts["model_error_frac"] is not None
            else "there was no replay",
        ),
        (
            "Steps analysed",
            f"{coverage['steps_analysed']} of {coverage['steps_recorded']}",
            "the first ones are left out: one-time work",
        ),
    ]


def _missing_words(missing: list[int]) -> str:
    if not missing:
        return "no rank is missing"
    named = ", ".join(map(str, missing[:_MOST_NAMED]))
    more = len(missing) - _MOST_NAMED
    return f"missing: {named}" + (f" and {more} more" if more > 0 else "")


def _coverage(facts: dict[str, Any]) -> Component:
    coverage = facts["coverage"]
    rows = [
        [
            f"attempt {one['attempt']}",
            one["first_step"],
            _NONE if units.is_unknown(one["last_step"]) else one["last_step"],
            one["ranks"],
            one["killed_ranks"],
        ]
        for one in coverage["attempts"]
    ]
    note = (
        f"Written by {facts['origin']}, level {facts['capture_level'] or units.UNKNOWN}. "
        f"{counted(coverage['steps_drawable'], 'step')} can be drawn. {_missing_words(coverage['missing_ranks']).capitalize()}."
    )
    if not rows:
        return card("What was captured", [], note=note)
    columns = ["Start of the job", "First step", "Last step", "Ranks", "Without an end in order"]
    return card("What was captured", [table(columns, rows)], note=note)


def _overhead(run: LoadedRun, facts: dict[str, Any], state: ViewState) -> Component:
    title, rows = "What recording cost", facts["overhead"]["ranks"]
    if not rows:
        why = f"Captures of {facts['origin']} do not record their own cost."
        return card(title, [empty("Overhead unknown", why)])
    cells = [
        [
            f"rank {row['rank']}",
            str(row["level"]),
            row["reason"] or _NONE,
            row["steps"],
            units.duration(row["dur_ns"]),
            units.duration(None if units.is_unknown(row["cost_ns"]) else row["cost_ns"]),
            units.percent(row["cost_frac"], 2),
        ]
        for row in rows[:_MOST_RANKS]
    ]
    columns = [
        "Rank",
        "Level",
        "Why this level",
        "Steps measured",
        "They took",
        "Hooks took",
        "Share",
    ]
    note = "By the probe's own measure of its hooks, on the host."
    if len(rows) > _MOST_RANKS:
        note += f" The dearest {_MOST_RANKS} of {len(rows)} rows; JSON and CSV have all."
    address = csv_address(run.run_id, "trust", "overhead", state)
    return card(title, [table(columns, cells, numeric_from=3)], note=note, csv=address)


def _losses(facts: dict[str, Any]) -> Component:
    title, losses = "Not recorded, or left out", facts["losses"]
    if not losses:
        text = "No dropped records, damaged blocks or missing ends in this capture."
        return card(title, [html.P(text, className="ms-note")])
    return card(title, [_listed(losses)])


def _clocks(facts: dict[str, Any]) -> Component:
    rows = [
        [
            row["host"],
            row["reference_host"],
            units.duration(row["offset_ns"]),
            _NONE if units.is_unknown(row["drift_ppm"]) else f"{row['drift_ppm']:.3g} ppm",
            f"± {units.duration(row['error_ns'])}",
        ]
        for row in facts["clocks"]
    ]
    drawn: list[Component] = []
    if rows:
        columns = ["Clock of", "Compared with", "Offset", "Drift", "Error"]
        drawn.append(table(columns, rows, numeric_from=2))
    else:
        drawn.append(html.P("No clock was moved: all times are as recorded.", className="ms-note"))
    if facts["clock_limits"]:
        drawn.append(_listed(facts["clock_limits"]))
    return card("Clocks", drawn)


def _conventions(facts: dict[str, Any]) -> Component:
    found = facts["conventions"]
    used = found["flops_convention"]
    rows = [
        [
            f"{name}, used" if name == used else name,
            units.rate(flops, "FLOP"),
            units.percent(found["mfu_by_convention"].get(name), 2),
        ]
        for name, flops in found["flops_by_convention"].items()
    ]
    note = (
        "Peak of one device: not known."
        if found["peak_flops"] is None
        else f"Peak of one device: {units.rate(found['peak_flops'], 'FLOP/s')}, "
        f"from {found['peak_source'] or 'an unknown source'}."
    )
    if not rows:
        why = "The capture lacks the model's shape or the tokens of a step."
        return card("Conventions of FLOPs", [empty("Model FLOPs unknown", why)], note=note)
    drawn: list[Component] = [table(["Convention", "Model FLOPs a step", "MFU"], rows)]
    if found["notes"]:
        drawn.append(_listed(found["notes"]))
    return card("Conventions of FLOPs", drawn, note=note)


def _assumptions(facts: dict[str, Any]) -> Component:
    found = facts["assumptions"]
    lines = [f"Assumed, not in the capture: {one}" for one in found["assumed"]]
    lines += [f"Inferred from recorded bytes: {one}" for one in found["inferred"]]
    lines += found["by_analysis"]
    if found["unknown_because"]:
        lines.append(f"Expected memory unknown: {found['unknown_because']}")
    if not lines:
        lines = ["None: the capture states all that the expected memory needs."]
    note = "State them under [training] in the run's topology.toml."
    return card("Assumptions", [_listed(lines)], note=note if found["assumed"] else "")


def _limits(facts: dict[str, Any]) -> Component:
    limits = facts["limits"]
    if not limits:
        text = "No limits: everything requested was captured."
        return card("All limits", [html.P(text, className="ms-note")])
    return card("All limits", [_listed(limits)])


def _listed(lines: list[str]) -> Component:
    return html.Ul([html.Li(str(line)) for line in lines], className="ms-limits")

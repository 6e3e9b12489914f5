"""Slow ranks and what-if: which rank is slow, and what would fixing it return?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.findings.none_found import nothing_found
from meshscope.analyze.wording.words import capitalised, counted, place_words, sentence

from ..answers.suspects import Choice, Knob, found_choices, knobs, place_choices
from ..answers.views import is_analysed, repaired_pair, stragglers
from ..figures.timeline import timeline
from ..plain import units
from ..runs.loaded_run import LoadedRun
from ..view.addresses import csv_address, page_address
from ..view.state import ViewState, with_changes
from .findings import severity_badge
from .shell import card, chart, empty, key_numbers, notice, table
from .timeline import legend

TITLE = "Which rank is slow, and what would fixing it return?"
KNOB = "whatif-knob"
"""Type of the ids of the settings; their names are those of ``--set``."""
_MOST_RANKS = 512
"""Ranks that the list of repairs offers; the address takes every rank."""
_NONE = "\N{EN DASH}"
_TOO_FEW_STEPS = ("jitter.remedy_one_step", "jitter.remedy_few_steps")
"""Advice of findings for which a rank may be slow, and the steps do not tell."""
_ERRORS = {
    "steps_ns": "95 % interval of the mean gain over the steps",
    "simulation_ns": "simulation of the schedule",
    "transfers_ns": "fixed time of transfers",
}

Row = Mapping[str, Any]

_SOON_MS = 10
"""At once after the page is drawn: the note that it is replayed shows first."""
_REPLAYING = html.P(
    "Replaying with these changes; the first replay of a large run takes a while. The rest of the page "
    "can be used meanwhile.",
    className="ms-notice",
    role="status",
)


def layout(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the page of suspects and of the replay."""
    return [
        dcc.Location(id="stragglers-url", refresh=False),
        # The query that is drawn, which tells a change of the address from the first view.
        dcc.Store(id="stragglers-drawn", data=state.query()),
        html.H1(TITLE, className="ms-title"),
        html.Div(content(run, state), id="stragglers-content"),
    ]


def content(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return what depends on the query: the suspects, the controls, and the replay."""
    if run.diagnosis.ledger.empty:
        why = (
            "Ranks are compared by steps. Start the job with: meshscope run -- COMMAND. "
            "If no steps are recorded, call meshscope.probe.step()."
        )
        return [empty("No steps were recorded", why)]
    is_there = run.replays.is_kept((state.fixes, state.settings))
    found = stragglers(run, state, with_replay=is_there)
    is_to_come = bool(found["command"]) and not is_there
    shown = [_REPLAYING] if is_to_come else _result(run, state, found)
    return [
        _suspects(run, found["suspects"], state),
        _controls(run, state, found),
        # Its key sets the clock back when other changes are asked for.
        html.Div(
            [
                html.Div(shown, id="stragglers-result"),
                dcc.Interval(
                    id="stragglers-wait",
                    interval=_SOON_MS,
                    max_intervals=1,
                    disabled=not is_to_come,
                ),
            ],
            key=f"replay{state.query()}",
        ),
    ]


def result(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the step before and after the changes of the address; the first time it is replayed for that."""
    return _result(run, state, stragglers(run, state))


def _suspects(run: LoadedRun, rows: Sequence[Row], state: ViewState) -> Component:
    if not rows:
        why = sentence(str(nothing_found(run.diagnosis)))
        if run.diagnosis.unknown_causes or not run.diagnosis.findings:
            return card("Suspects", [empty("No rank is named", why)])
        few = next(
            (one for one in run.diagnosis.findings if one.remedy.code in _TOO_FEW_STEPS), None
        )
        if few is not None:
            return card("Suspects", [empty("No rank is named", sentence(str(few.remedy)))])
        why = "No rank, stage or clock is slower than its peers by more than chance. Other findings are on the page Findings."
        return card("Suspects", [empty("No rank is slow", why)])
    cells = [
        [
            _who(run, row, state),
            _evidence(row),
            html.Span(_since(row), className="ms-one-line"),
            _ratio(row["slowdown"]),
            _NONE if row["excess_ns"] is None else units.duration(row["excess_ns"]),
            units.percent(row["cost_frac"]),
            _returns(row),
            units.percent(row["confidence"], places=0),
        ]
        for row in rows
    ]
    columns = [
        "Suspect",
        "Evidence",
        "Since",
        "Slowdown",
        "Excess a step",
        "Costs of the step",
        "Fixing it returns",
        "Confidence",
    ]
    note = (
        "Costliest first. Slowdown: against peers; for several ranks, that of the slowest. "
        "Ranges: error of the comparison; for a replay, variation of its gain between steps."
    )
    return card(
        "Suspects",
        [table(columns, cells, numeric_from=3)],
        note=note,
        csv=csv_address(run.run_id, "stragglers", "suspects", state),
    )


def _who(run: LoadedRun, row: Row, state: ViewState) -> Component:
    replay = with_changes(state, row["fixes"], ())
    link = dcc.Link(
        "Replay without it",
        href=page_address(run.run_id, "stragglers", replay),
        className="ms-link",
    )
    named = html.Strong(capitalised(place_words(row["where"])))
    kind = html.Span(str(row["kind"]).replace("_", " "), className="ms-place")
    lines = [severity_badge(row["severity"]), named, kind, *([link] if row["fixes"] else [])]
    return html.Div(lines, className="ms-lines")


def _evidence(row: Row) -> Component:
    """Return the claim, and behind it the facts that it rests on."""
    facts = html.Ul([html.Li(fact) for fact in row["evidence"]], className="ms-evidence")
    return html.Details(
        [html.Summary(row["claim"]), facts], className="ms-details ms-facts-cell", open=True
    )


def _since(row: Row) -> str:
    first, last, bad = row["first_step"], row["last_step"], row["slow_steps"]
    if first is None:
        return "all steps"
    if bad is not None and bad <= last - first:
        return f"{bad} steps of {first} to {last}"
    if row["is_to_the_end"]:
        return "all steps" if last - first + 1 == row["steps"] else f"step {first} on"
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _ratio(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f} x"


def _returns(row: Row) -> Component:
    """Return what a repair returns, and below it the range of that."""
    words = [html.Div(units.percent(row["returns_frac"]))]
    if row["returns_interval"] is not None:
        low, high = map(units.percent, row["returns_interval"])
        words.append(html.Div(f"{low} to {high}", className="ms-place ms-one-line"))
    return html.Div(words)


def _controls(run: LoadedRun, state: ViewState, found: Row) -> Component:
    """Return what is repaired and set, and the button that replays it."""
    repairs = dmc.MultiSelect(
        id="whatif-fixes",
        label="Repair",
        data=_choices(run, state),
        value=list(state.fixes),
        searchable=True,
        clearable=True,
        hidePickedOptions=True,
        placeholder="" if state.fixes else "ranks, stages, hosts, axes, causes",
        size="xs",
    )
    chosen = dict(text.partition("=")[::2] for text in state.settings)
    inputs = [_knob(knob, chosen.get(knob.name, "")) for knob in knobs(run.diagnosis)]
    buttons = [
        dmc.Button("Replay", id="whatif-replay", size="xs"),
        dmc.Button("Clear", id="whatif-clear", size="xs", variant="default"),
    ]
    if found["command"]:
        buttons.append(html.Code(found["command"], className="ms-command"))
    notices = []
    if run.no_path_because:
        why = f"Repairs cannot be replayed: {run.no_path_because} Record communication of every axis: MESHSCOPE_LEVEL=collectives or above."
        notices.append(notice(why))
    note = "Choose repairs or settings. The server then replays the recorded program with them."
    return card(
        "What if",
        [
            *notices,
            repairs,
            html.Div(inputs, className="ms-knobs"),
            html.Div(buttons, className="ms-title-row ms-controls ms-buttons"),
        ],
        note=note,
    )


def _knob(knob: Knob, value: str) -> Component:
    field = {
        "id": {"type": KNOB, "name": knob.name},
        "label": knob.label,
        "placeholder": knob.example,
        "value": value,
        "size": "xs",
    }
    control: Component
    if knob.values:
        # Not a select: the command takes more than the values listed.
        control = dmc.Autocomplete(data=list(knob.values), **field)
    else:
        control = dmc.TextInput(**field)
    return control


def _choices(run: LoadedRun, state: ViewState) -> list[dict[str, Any]]:
    """Return the repairs to choose from: causes that were found, then places, then what the address names."""
    groups = {"Found in this run": found_choices(run.diagnosis)}
    groups |= place_choices(run.diagnosis, run.trace)
    groups["Ranks"] = groups["Ranks"][:_MOST_RANKS]
    groups["Of the address"] = [Choice(fix, fix) for fix in state.fixes]
    listed: set[str] = set()
    data = []
    for name, choices in groups.items():
        items = [_option(choice) for choice in choices if choice.fix not in listed]
        listed.update(choice.fix for choice in choices)
        if items:
            data.append({"group": name, "items": items})
    return data


def _option(choice: Choice) -> dict[str, str]:
    label = choice.label
    if choice.gain_frac is not None:
        label += f": returns {units.percent(choice.gain_frac)}"
    return {"value": choice.fix, "label": label}


def _result(run: LoadedRun, state: ViewState, found: Row) -> list[Component]:
    """Return the step before and after, or why there is none; nothing where nothing is asked."""
    if found["error"] is not None:
        return [empty("This cannot be replayed", found["error"])]
    result = found["what_if"]
    if result is None:
        return []
    facts = [html.Li(sentence(capitalised(text))) for text in _facts(result)]
    csv = csv_address(run.run_id, "stragglers", "replay", state)
    title = "The step with these changes"
    shown: list[Component] = [key_numbers(_numbers(result)), html.Ul(facts, className="ms-limits")]
    return [card(title, shown, csv=csv), *_timelines(run, state)]


def _numbers(result: Row) -> list[tuple[str, str, str]]:
    error_ns, gain, now_ns = result["error_ns"], result["gain_frac"], result["step_time_ns"]
    margin, between = "error not known", result["error_unknown"] or "error not known"
    if error_ns is not None:
        margin = f"± {units.duration(error_ns)} (error of the prediction)"
        low, high = (units.percent(gain + sign * error_ns / now_ns) for sign in (-1, 1))
        between = f"{low} to {high} of the step"
    return [
        ("Step time now", units.duration(now_ns), "mean of the analysed steps"),
        ("Step time then", units.duration(result["predicted_step_time_ns"]), margin),
        ("Gain", units.percent(gain), between),
    ]


def _facts(result: Row) -> list[str]:
    """Return what the error consists of, what is assumed, and the time of a microbatch."""
    facts = [
        f"{_ERRORS[name]}: ± {units.duration(part)}"
        for name, part in result["error_parts"].items()
        if part
    ]
    if result["gain_per_microbatch_frac"] is not None:
        per = result["gain_per_microbatch_frac"]
        facts.append(
            f"time per microbatch, with {result['microbatches']} of them: "
            f"{units.percent(abs(per))} {'less' if per >= 0 else 'more'}"
        )
    return [*facts, *(f"assumed: {text}" for text in result["assumptions"])]


def _timelines(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the step as recorded and, below it, with the changes, on one axis of time."""
    pair = repaired_pair(run, state)
    if pair is None:
        return [
            notice(
                "No timeline: changes of schedule, microbatches or layers are simulated from the "
                "passes, not replayed."
            )
        ]
    recorded, then = pair
    window = (0, max(recorded.length_ns, then.length_ns, 1))
    ranks = counted(len(recorded.ranks), "rank")
    drawn = [legend(recorded, window)]
    for step, name, words in (
        (recorded, "recorded", "As recorded"),
        (then, "repaired", "With these changes"),
    ):
        figure = timeline(step, window, "")
        caption = f"{words}: {ranks}, {units.duration(step.length_ns)} from the first begin to the last end."
        drawn.append(chart(figure, caption, f"whatif-{name}-graph"))
    return [
        card(f"Step {recorded.step}, before and after", [_steps(run, state, recorded.step), *drawn])
    ]


def _steps(run: LoadedRun, state: ViewState, step: int) -> Component:
    """Return the links to the steps before and after."""
    at = run.steps.index(step)
    near = [("Previous step", at - 1), ("Next step", at + 1)]
    links = [
        dcc.Link(
            words,
            href=page_address(run.run_id, "stragglers", state.at_step(run.steps[other])),
            className="ms-link",
        )
        for words, other in near
        if 0 <= other < len(run.steps) and is_analysed(run.diagnosis, run.steps[other])
    ]
    return html.Div(links, className="ms-links ms-step-links")

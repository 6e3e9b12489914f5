"""The pipeline timeline of one step: which bubbles, and why?"""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.words import counted

from .. import units
from ..api import tile_url
from ..categories import COLOURS, LABELS
from ..figures.timeline import shown_categories, timeline, uses_tile
from ..loaded_run import LoadedRun
from ..path_words import path_sentence
from ..paths import Outlines, StepPath, outlines
from ..slices import WHOLE_CAPTURE, StepSlices, in_window, steps_of
from ..state import ViewState, view_at
from ..theme import INK
from ..views import critical_path, shown_step
from ..views import timeline as timeline_view
from .shell import card, chart, empty, run_page


def layout(run: LoadedRun, state: ViewState) -> Component:
    """Return the timeline page."""
    return run_page(
        run,
        "timeline",
        [
            # A location of its own, so that only this page redraws when its query changes.
            dcc.Location(id="timeline-url", refresh=False),
            # The query that the controls show, which tells a change by the page from one by hand.
            dcc.Store(id="timeline-drawn", data=state.query()),
            _controls(run, state),
            html.Div(content(run, state), id="timeline-content"),
        ],
    )


def content(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return what depends on the query: notices, legend, figure, caption."""
    step, window = timeline_view(run, state)
    notices = [html.P(text, className="ms-notice") for text in _notices(run, state)]
    if step.slices.empty:
        why = "The capture holds no spans, kernels or timed communication for it."
        return [*notices, empty("Nothing was recorded in this step", why)]
    path = critical_path(run, state)
    address = tile_url(run.run_id, view_at(step.step, window), run.version)
    outlined = None if path is None else outlines(path, window)
    figure = timeline(step, window, address, outlined)
    title = "Whole capture" if step.step == WHOLE_CAPTURE else f"Step {step.step}"
    drawn = [
        _legend(step, window, with_path=path is not None),
        chart(figure, _caption(step, window), "timeline-graph"),
    ]
    if path is not None and outlined is not None:
        drawn.append(_path_caption(path, outlined))
    return [*notices, card(title, drawn)]


def neighbour(run: LoadedRun, state: ViewState, offset: int) -> int:
    """Return the step before or after the shown one; at an end, the shown one."""
    steps = steps_of(run.trace)
    at = steps.index(shown_step(run, state)) + offset
    return steps[min(max(at, 0), len(steps) - 1)]


def _controls(run: LoadedRun, state: ViewState) -> Component:
    steps = steps_of(run.trace)
    named = [step for step in steps if step != WHOLE_CAPTURE]
    return html.Div(
        [
            html.H1("Pipeline timeline", className="ms-title"),
            html.Span(className="ms-spring"),
            dmc.Button(
                "Previous", id="timeline-previous", variant="default", size="xs", disabled=not named
            ),
            dmc.Select(
                id="timeline-step",
                data=[{"value": str(step), "label": f"step {step}"} for step in named],
                value=str(shown_step(run, state)) if named else None,
                searchable=True,
                allowDeselect=False,
                size="xs",
                w=130,
                disabled=not named,
                placeholder="no steps",
                **{"aria-label": "step"},
            ),
            dmc.Button(
                "Next", id="timeline-next", variant="default", size="xs", disabled=not named
            ),
            dmc.Button("Whole step", id="timeline-fit", variant="light", size="xs"),
            _path_switch(run, state),
        ],
        className="ms-title-row ms-controls",
    )


def _path_switch(run: LoadedRun, state: ViewState) -> Component:
    """Return the switch of the critical path; a tooltip says why it cannot be used."""
    reason = run.path_unknown_because(shown_step(run, state))
    switch = dmc.Switch(
        id="timeline-path",
        label="Critical path",
        checked=state.path,
        disabled=bool(reason),
        size="xs",
    )
    tooltip: Component = dmc.Tooltip(
        # A disabled control hears no mouse: the box around it does.
        html.Div(switch),
        id="timeline-path-why",
        label=reason,
        disabled=not reason,
        multiline=True,
        w=320,
    )
    return tooltip


def _legend(step: StepSlices, window: tuple[int, int], *, with_path: bool) -> Component:
    entries = [
        (LABELS[category], {"background": COLOURS[category]})
        for category in shown_categories(step, window)
    ]
    if with_path:
        entries.append(("critical path", {"outline": f"2px solid {INK}", "outlineOffset": "-2px"}))
    return html.Ul(
        [
            html.Li([html.Span(className="ms-swatch", style=style), words])
            for words, style in entries
        ],
        className="ms-legend",
    )


def _path_caption(path: StepPath, outlined: Outlines) -> Component:
    """Return what the path of the whole step consists of, and what of it is not outlined."""
    text = path_sentence(path)
    if outlined.left_out:
        text += f" The {outlined.left_out:,} shortest stretches in view are not outlined: zoom in."
    return html.P(text, id="timeline-path-caption", className="ms-note")


def _caption(step: StepSlices, window: tuple[int, int]) -> str:
    seen = len(in_window(step.slices, window))
    way = (
        "drawn as a picture; zoom in until single slices appear"
        if uses_tile(step, window)
        else "drag across the figure to zoom, point at a bar for its name"
    )
    text = (
        f"{counted(len(step.ranks), 'rank')}, {units.duration(window[1] - window[0])} of "
        f"{units.duration(step.length_ns)}, {seen:,} slices: {way}."
    )
    if step.undrawn:
        text += f" {step.undrawn} communications whose waiting was not seen are not drawn."
    return text


def _notices(run: LoadedRun, state: ViewState) -> list[str]:
    notices = []
    if state.rejected:
        notices.append(f"Not understood in the address, and left out: {', '.join(state.rejected)}.")
    if state.step is not None and state.step not in steps_of(run.trace):
        notices.append(f"Step {state.step} is not in this run; a typical step is shown.")
    reason = run.path_unknown_because(shown_step(run, state))
    if state.path and reason:
        notices.append(f"No critical path is drawn. {reason}")
    return notices

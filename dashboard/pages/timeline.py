"""The pipeline timeline of one step: which bubbles, and why?"""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from .. import units
from ..api import tile_url
from ..categories import COLOURS, LABELS
from ..figures.timeline import shown_categories, timeline, uses_tile
from ..slices import WHOLE_CAPTURE, StepSlices, in_window, steps_of
from ..state import ViewState, view_at
from ..store import LoadedRun
from ..views import shown_step
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
    figure = timeline(step, window, tile_url(run.run_id, view_at(step.step, window), run.version))
    title = "Whole capture" if step.step == WHOLE_CAPTURE else f"Step {step.step}"
    return [
        *notices,
        card(
            title, [_legend(step, window), chart(figure, _caption(step, window), "timeline-graph")]
        ),
    ]


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
        ],
        className="ms-title-row ms-controls",
    )


def _legend(step: StepSlices, window: tuple[int, int]) -> Component:
    return html.Ul(
        [
            html.Li(
                [
                    html.Span(className="ms-swatch", style={"background": COLOURS[category]}),
                    LABELS[category],
                ]
            )
            for category in shown_categories(step, window)
        ],
        className="ms-legend",
    )


def _caption(step: StepSlices, window: tuple[int, int]) -> str:
    seen = len(in_window(step.slices, window))
    way = (
        "drawn as a picture; zoom in until single slices appear"
        if uses_tile(step, window)
        else "drag across the figure to zoom, point at a bar for its name"
    )
    text = (
        f"{len(step.ranks)} ranks, {units.duration(window[1] - window[0])} of "
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
    return notices

"""The pipeline timeline of one step: which bubbles, and why?"""

from __future__ import annotations

from typing import Any, NamedTuple

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.align.clocks.alignment import has_clocks_apart
from meshscope.analyze.align.steps.whole_capture import WHOLE_CAPTURE
from meshscope.analyze.output.timeline.categories import COLOURS, COMMUNICATION, LABELS, Category
from meshscope.analyze.output.timeline.slices import StepSlices, is_in_window
from meshscope.analyze.wording.words import counted

from ..answers.instant import instant, sentences
from ..answers.rows import ShownRows, is_beyond, names_rank, shown_rows
from ..answers.views import critical_path, path_missing_because, shown_step
from ..answers.views import timeline as timeline_view
from ..answers.wait import place_row, wait_arrow
from ..figures.timeline import shown_categories, timeline, uses_tile
from ..plain import units
from ..runs.loaded_run import LoadedRun, is_running
from ..timeline.path_words import path_sentence
from ..timeline.paths import Outlines, StepPath, outlines
from ..view.addresses import instant_address, page_address, perfetto_address
from ..view.state import ViewState, parse_query, view_at, with_hidden, with_pin
from .shell import card, chart, empty, notice

_MOST_OFFERED = 500
"""Steps that a list offers at a time; what is typed finds the others."""
_MIN_SKEW = 1.02
"""Span of a step over its longest rank, from which the two need words."""


def layout(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the timeline page."""
    return [
        # A location of its own, so that only this page redraws when its query changes.
        dcc.Location(id="timeline-url", refresh=False),
        # The query that the controls show, which tells a change by the page from one by hand.
        dcc.Store(id="timeline-drawn", data=state.query()),
        _controls(run, state),
        html.Div(content(run, state), id="timeline-content"),
        # The row and the time that were clicked.
        dcc.Store(id="timeline-at"),
        html.Div(place_panel(run, state), id="timeline-instant", role="status"),
    ]


def content(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return what depends on the query: notices, legend, figure, caption."""
    notices = html.Div(_all_notices(run, state), id="timeline-notices")
    if not _has_figure(run, state):
        why = "The capture contains no spans, kernels or timed communication for it."
        return [notices, empty("Nothing to draw in this step", why)]
    found = _parts(run, state)
    drawn = [
        html.Div(found.legend, id="timeline-legend"),
        chart(found.figure, found.caption, "timeline-graph"),
        html.Div(found.below, id="timeline-below"),
    ]
    return [notices, card(_title(run, state), drawn)]


def changes(run: LoadedRun, before: ViewState, state: ViewState) -> dict[str, dict[str, Any]]:
    """Return by id what to set where a view replaces another; empty where all has to be drawn anew.

    A figure that stays in its place is drawn in half the time of a new one.
    """
    is_same = _title(run, before) == _title(run, state) and not is_running(run)
    if not is_same or not _has_figure(run, before) or not _has_figure(run, state):
        return {}
    found = _parts(run, state)
    return {
        "timeline-notices": {"children": _all_notices(run, state)},
        "timeline-legend": {"children": found.legend},
        "timeline-graph": {"figure": found.figure},
        "timeline-graph-caption": {"children": found.caption},
        "timeline-below": {"children": found.below},
    }


class _Parts(NamedTuple):
    """What of a view changes with its window and rows."""

    legend: Component
    figure: go.Figure
    caption: str
    below: list[Component]


def _parts(run: LoadedRun, state: ViewState) -> _Parts:
    step, window = timeline_view(run, state)
    path = critical_path(run, state)
    shown = view_at(step.step, window, state)
    outlined = None if path is None else outlines(path, window)
    # A picture has no room for hatching.
    transfers = None if uses_tile(step, window) else run.transfers(step.step)
    rows, arrow = shown_rows(run, step, state), wait_arrow(run, state)
    url = instant_address(run.run_id, shown)
    figure = timeline(step, window, url, outlined, transfers, rows=rows, wait=arrow)
    trace = html.A(
        "Trace of this window for Perfetto",
        href=perfetto_address(run.run_id, shown),
        className="ms-link",
        id="timeline-perfetto",
        title="Open the file at ui.perfetto.dev, or in your own Perfetto",
    )
    entries = filtering_legend(
        run, state, step, window, with_path=path is not None, hatched=transfers is not None
    )
    below: list[Component] = []
    if arrow is not None:
        words = f"Arrow: rank {arrow.waited_for} came last, and rank {arrow.rank} waited for it."
        below.append(html.P(words, id="timeline-arrow", className="ms-note"))
    if path is not None and outlined is not None:
        below.append(_path_caption(path, outlined))
    below.append(html.Div(trace, className="ms-links"))
    return _Parts(entries, figure, _caption(step, window, rows), below)


def _has_figure(run: LoadedRun, state: ViewState) -> bool:
    return bool(state.hidden) or not timeline_view(run, state)[0].slices.empty


def _title(run: LoadedRun, state: ViewState) -> str:
    step, _ = timeline_view(run, state)
    title = "Whole capture" if step.step == WHOLE_CAPTURE else f"Step {step.step}"
    if names_rank(run, state) and len(step.ranks) < len(run.trace.ranks):
        title += f", rank {state.rank} and those in a group with it"
    return title


def _all_notices(run: LoadedRun, state: ViewState) -> list[Component]:
    return list(map(notice, _notices(run, state)))


def place_panel(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return what is at the place that a view names; nothing without one, or where its rank is not shown."""
    row = place_row(run, state)
    return (
        [] if row is None or state.place is None else instant_panel(run, state, row, state.place[1])
    )


def instant_panel(run: LoadedRun, state: ViewState, row: int, at_ns: int) -> list[Component]:
    """Return what a row shows at an instant, with links to its rank and to the one it waited for."""
    at_click = instant(run, state, row, at_ns)
    rank, operation = at_click["rank"], at_click["operation"]
    if rank is None:
        return []
    step = "" if at_click["step"] is None else f", step {at_click['step']}"
    return [
        card(
            f"{at_click['place']}{step}",
            [
                html.Ul(
                    [html.Li(sentence) for sentence in sentences(at_click)], className="ms-list"
                ),
                html.Div(_links_of(run, state, rank, operation), className="ms-links"),
            ],
        )
    ]


def _links_of(
    run: LoadedRun, state: ViewState, rank: int, operation: dict[str, Any] | None
) -> list[Component]:
    """Return the views that lead on from a rank: its groups, its peer, its row on top."""
    is_pinned = rank in state.pins
    views = {
        f"Show rank {rank} and its groups": state.around(rank),
        f"Unpin rank {rank}" if is_pinned else f"Pin rank {rank} to the top": with_pin(
            state, rank, pinned=not is_pinned
        ),
    }
    peer = None if operation is None else operation["waited_for"]
    if peer is not None:
        views[f"Pin rank {peer}, which came last"] = with_pin(state, peer, pinned=True)
        views[f"Show rank {peer} and its groups"] = state.around(peer)
    return [
        dcc.Link(text, href=page_address(run.run_id, "timeline", view), className="ms-link")
        for text, view in views.items()
    ]


def neighbour(run: LoadedRun, state: ViewState, offset: int) -> int:
    """Return the step before or after the shown one; at an end, the shown one."""
    steps = run.steps
    at = steps.index(shown_step(run, state)) + offset
    return steps[min(max(at, 0), len(steps) - 1)]


def _controls(run: LoadedRun, state: ViewState) -> Component:
    named = [step for step in run.steps if step != WHOLE_CAPTURE]
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
                limit=_MOST_OFFERED,
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
            dmc.TextInput(
                id="timeline-rank",
                value=rank_text(state),
                placeholder="all ranks",
                debounce=True,
                size="xs",
                w=110,
                **{"aria-label": "rank whose groups are shown"},
            ),
            dmc.Button("Whole step", id="timeline-fit", variant="light", size="xs"),
            _path_switch(run, state),
            dmc.Button("Keys", id="timeline-keys", variant="subtle", size="xs"),
        ],
        className="ms-title-row ms-controls",
    )


def rank_text(state: ViewState) -> str:
    """Return the rank of a view as its control shows it; empty for all ranks."""
    return "" if state.rank is None else f"rank {state.rank}"


def rank_in(text: str) -> int | None:
    """Return the rank that was typed: ``5`` or ``rank 5``; None for anything else."""
    return parse_query(f"?rank={text.strip().lower().removeprefix('rank').strip()}").rank


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


def legend(step: StepSlices, window: tuple[int, int], *, with_path: bool = False) -> Component:
    """Return what the colours in a window of a step mean."""
    entries = [
        _entry(_swatch(category), LABELS[category]) for category in shown_categories(step, window)
    ]
    return _legend_of(entries, with_path=with_path)


def filtering_legend(
    run: LoadedRun,
    state: ViewState,
    step: StepSlices,
    window: tuple[int, int],
    *,
    with_path: bool,
    hatched: bool,
) -> Component:
    """Return the same, each entry a link that leaves its category out; and what is left out, to be had back."""
    categories = shown_categories(step, window)
    shown = [(category, True) for category in categories]
    left_out = [(Category[name.upper()], False) for name in state.hidden]
    entries = []
    for category, is_shown in sorted([*shown, *left_out]):
        view = with_hidden(state, category.name.lower(), hidden=is_shown)
        words = dcc.Link(
            LABELS[category],
            href=page_address(run.run_id, "timeline", view),
            title="Leave it out" if is_shown else "Show it again",
            className="ms-plain" if is_shown else "ms-plain ms-left-out",
        )
        entries.append(_entry(_swatch(category), words))
    if hatched and COMMUNICATION.intersection(categories):
        swatch = html.Span(className="ms-swatch ms-hatched", style=_swatch(Category.HOST))
        entries.append(html.Li([swatch, "hatched: waits for others"]))
    return _legend_of(entries, with_path=with_path)


def _swatch(category: Category) -> dict[str, str]:
    return {"background": COLOURS[category]}


def _entry(style: dict[str, str], words: str | Component) -> Component:
    return html.Li([html.Span(className="ms-swatch", style=style), words])


def _legend_of(entries: list[Component], *, with_path: bool) -> Component:
    if with_path:
        style = {"outline": "2px solid var(--ink)", "outlineOffset": "-2px"}
        entries.append(_entry(style, "critical path"))
    return html.Ul(entries, className="ms-legend")


def _path_caption(path: StepPath, outlined: Outlines) -> Component:
    """Return what the path of the whole step consists of, and what of it is not outlined."""
    text = path_sentence(path)
    if outlined.left_out:
        text += f" The {outlined.left_out:,} shortest stretches in view are not outlined: zoom in."
    return html.P(text, id="timeline-path-caption", className="ms-note")


def _caption(step: StepSlices, window: tuple[int, int], rows: ShownRows) -> str:
    seen = int(is_in_window(step.slices, window).sum())
    way = (
        "drawn as a picture; point at it for names, zoom in until single slices appear"
        if uses_tile(step, window)
        else "drag across the figure to zoom, click for details"
    )
    text = (
        f"{counted(len(step.ranks), 'rank')}, {units.duration(window[1] - window[0])} of "
        f"{units.duration(step.length_ns)}, {seen:,} slices: {way}."
    )
    if rows.is_part:
        first, last = rows.shown
        text += f" Shown: {last - first + 1} of {rows.count} rows. Whole step shows all."
    if rows.each > 1:
        text += (
            f" Each row shows the slowest of {rows.each} ranks; ranks named by findings come first. "
            "Name a rank above to see its groups alone."
        )
    if step.length_ns > _MIN_SKEW * step.longest_ns:
        text += (
            " Ranks start the step at different times: drawn from the first start to the last end. "
            f"The longest rank takes {units.duration(step.longest_ns)}."
        )
    if step.undrawn:
        text += f" {step.undrawn} communications without recorded waiting are not drawn."
    return text


def _absent_step(run: LoadedRun, asked: int, shown: int) -> str:
    if asked not in run.bare_steps:
        return f"Step {asked} is not in this run; another one is shown."
    why = "recorded" if run.trace.is_whole else "recorded, or read for lack of memory"
    return f"Only the length of step {asked} was {why}. Step {shown} is shown."


def _notices(run: LoadedRun, state: ViewState) -> list[str]:
    notices = []
    step, _ = timeline_view(run, state)
    if state.step is not None and state.step not in run.steps:
        notices.append(_absent_step(run, state.step, step.step))
    if state.is_outside(step.length_ns):
        notices.append(
            f"The window of the address begins after the end of the step, {units.duration(step.length_ns)} "
            "after its start; the whole step is shown."
        )
    if is_beyond(run, step.step, state):
        notices.append("The rows of the address begin after the last one; all rows are shown.")
    if step.is_broken_off:
        notices.append(
            f"The capture broke off in step {step.step}. What had not ended is drawn up to the last "
            "record of any rank."
        )
    if has_clocks_apart(run.trace):
        notices.append(
            "The clocks of these ranks are not aligned: nothing in the capture compares them. Compare "
            "times within a rank only; the order of rows at one instant says nothing."
        )
    if state.rank is not None and state.rank not in run.trace.ranks:
        notices.append(f"Rank {state.rank} is not in this run; all ranks are shown.")
    if reason := path_missing_because(run, state):
        notices.append(f"No critical path is drawn. {reason}")
    return notices

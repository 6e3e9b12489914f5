"""What a control, a key, a zoom and a click on the timeline do: each writes the address.

The browser writes that of a key and a click, once they have settled.
"""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, ctx, no_update, set_props

from ..answers.views import shown_step
from ..pages import timeline
from ..runs.store import RunStore
from ..view.state import parse_query
from .controls import chosen_view, stepped_view, zoomed_view
from .shown_run import frame_of, run_at


def register(app: Dash, store: RunStore) -> None:
    """Add the callbacks of the timeline."""
    _register_drawing(app, store)
    _register_steps(app, store)
    _register_view(app)
    _register_instant(app, store)


def _register_drawing(app: Dash, store: RunStore) -> None:
    """Add what draws the view of an address, and sets the controls."""

    @app.callback(
        Output("timeline-content", "children"),
        Output("timeline-instant", "children", allow_duplicate=True),
        Output("timeline-step", "value"),
        Output("timeline-rank", "value"),
        Output("timeline-path", "checked"),
        Output("timeline-path", "disabled"),
        Output("timeline-path-why", "label"),
        Output("timeline-path-why", "disabled"),
        Output("timeline-drawn", "data"),
        Output("json-link", "href", allow_duplicate=True),
        Output("run-tabs", "children", allow_duplicate=True),
        Output("ignored", "children", allow_duplicate=True),
        Input("timeline-url", "search"),
        State("timeline-url", "pathname"),
        State("timeline-drawn", "data"),
        prevent_initial_call=True,
    )
    def draw(query: str | None, path: str | None, drawn: str | None) -> Any:
        run, state = run_at(store, path, "timeline-content"), parse_query(query)
        if run is None:
            # What is no longer there cannot be changed, only drawn anew.
            set_props("timeline-drawn", {"data": None})
        if run is None or state.is_asked_by(drawn):
            return (no_update,) * 12
        step = shown_step(run, state)
        reason = run.path_unknown_because(step)
        before = parse_query(drawn)
        changes = {} if drawn is None else timeline.changes(run, before, state)
        for part, values in changes.items():
            set_props(part, values)
        drawing = no_update if changes else timeline.content(run, state)
        content = drawing, timeline.place_panel(run, state)
        # A control that is set asks the server, also for what it shows already.
        controls = (
            no_update if step == shown_step(run, before) else str(step),
            no_update if state.rank == before.rank else timeline.rank_text(state),
            no_update if state.path == before.path else state.path,
        )
        why = (bool(reason), reason, not reason)
        return *content, *controls, *why, state.query(), *frame_of(run, "timeline", state)


def _register_steps(app: Dash, store: RunStore) -> None:
    """Add the selector and the buttons of steps."""

    @app.callback(
        Output("timeline-url", "search"),
        Input("timeline-step", "value"),
        State("timeline-url", "search"),
        State("timeline-drawn", "data"),
        State("timeline-url", "pathname"),
        prevent_initial_call=True,
    )
    def select(step: str | None, query: str | None, drawn: str | None, path: str | None) -> Any:
        run = run_at(store, path, "timeline-content")
        if run is None:
            return no_update
        chosen = stepped_view(run, parse_query(query), parse_query(drawn), step)
        return no_update if chosen is None else chosen.query()

    # Apart from the selector: drawing sets that, and a callback asked again forgets its first answer.
    @app.callback(
        Output("timeline-url", "search", allow_duplicate=True),
        inputs={
            "_buttons": [
                Input(f"timeline-{name}", "n_clicks") for name in ("previous", "next", "fit")
            ],
            "query": State("timeline-url", "search"),
            "path": State("timeline-url", "pathname"),
        },
        prevent_initial_call=True,
    )
    def press(_buttons: list[object], query: str | None, path: str | None) -> Any:
        run = run_at(store, path, "timeline-content")
        if run is None:
            return no_update
        return chosen_view(run, parse_query(query), str(ctx.triggered_id)).query()


def _register_view(app: Dash) -> None:
    """Add what changes how a step is shown: its window, its rows, and its critical path."""

    @app.callback(
        Output("timeline-url", "search", allow_duplicate=True),
        Input("timeline-graph", "relayoutData"),
        State("timeline-url", "search"),
        prevent_initial_call=True,
    )
    def zoom(relayout: dict[str, Any] | None, query: str | None) -> Any:
        changed = zoomed_view(parse_query(query), relayout)
        return no_update if changed is None else changed.query()

    @app.callback(
        Output("timeline-url", "search", allow_duplicate=True),
        Input("timeline-path", "checked"),
        State("timeline-url", "search"),
        State("timeline-drawn", "data"),
        prevent_initial_call=True,
    )
    def switch_path(checked: object, query: str | None, drawn: str | None) -> Any:
        shown = bool(checked)
        if shown == parse_query(drawn).path:
            return no_update
        return parse_query(query).with_path(shown=shown).query()

    @app.callback(
        Output("timeline-url", "search", allow_duplicate=True),
        Input("timeline-rank", "value"),
        State("timeline-url", "search"),
        State("timeline-drawn", "data"),
        prevent_initial_call=True,
    )
    def choose_rank(text: str | None, query: str | None, drawn: str | None) -> Any:
        if text == timeline.rank_text(parse_query(drawn)):
            return no_update
        rank = timeline.rank_in(text or "")
        return (
            parse_query(query).around(rank).query() if rank is not None or not text else no_update
        )


def _register_instant(app: Dash, store: RunStore) -> None:
    """Tell of the place that was clicked what it is, and whom it waited for."""

    @app.callback(
        Output("timeline-instant", "children"),
        Input("timeline-at", "data"),
        State("timeline-url", "search"),
        State("timeline-url", "pathname"),
        prevent_initial_call=True,
    )
    def tell(at: object, query: str | None, path: str | None) -> Any:
        run = run_at(store, path, "timeline-instant")
        row, at_ns = (at.get(name) if isinstance(at, dict) else None for name in ("row", "at"))
        if run is None or not isinstance(row, int) or not isinstance(at_ns, int):
            return no_update
        return timeline.instant_panel(run, parse_query(query), row, at_ns)

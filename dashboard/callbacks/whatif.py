"""What happens on the page of stragglers: a button writes the changes into the address, which is replayed."""

from __future__ import annotations

from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, no_update

from ..pages import stragglers
from ..runs.store import RunStore
from ..view.state import parse_query, with_changes
from .controls import changed_view
from .shown_run import frame_of, run_at


def register(app: Dash, store: RunStore) -> None:
    """Add the callbacks of the replay."""

    @app.callback(
        Output("stragglers-content", "children"),
        Output("stragglers-drawn", "data"),
        Output("json-link", "href", allow_duplicate=True),
        Output("run-tabs", "children", allow_duplicate=True),
        Output("ignored", "children", allow_duplicate=True),
        Input("stragglers-url", "search"),
        State("stragglers-url", "pathname"),
        State("stragglers-drawn", "data"),
        prevent_initial_call=True,
    )
    def draw(query: str | None, path: str | None, drawn: str | None) -> Any:
        run, state = run_at(store, path, "stragglers-content"), parse_query(query)
        if run is None or state.is_asked_by(drawn):
            return (no_update,) * 5
        return stragglers.content(run, state), state.query(), *frame_of(run, "stragglers", state)

    # The first replay of a run measures it again: the page must not wait for that.
    @app.callback(
        Output("stragglers-result", "children"),
        Input("stragglers-wait", "n_intervals"),
        State("stragglers-url", "pathname"),
        State("stragglers-url", "search"),
        prevent_initial_call=True,
    )
    def fill_replay(_: int | None, path: str | None, query: str | None) -> Any:
        run = run_at(store, path, "stragglers-result")
        return no_update if run is None else stragglers.result(run, parse_query(query))

    @app.callback(
        Output("stragglers-url", "search"),
        Input("whatif-replay", "n_clicks"),
        Input("whatif-clear", "n_clicks"),
        State("whatif-fixes", "value"),
        State({"type": stragglers.KNOB, "name": ALL}, "value"),
        State({"type": stragglers.KNOB, "name": ALL}, "id"),
        State("stragglers-url", "search"),
        prevent_initial_call=True,
    )
    def replay(
        replays: int | None,
        clears: int | None,
        fixes: list[str] | None,
        values: list[str | None],
        ids: list[dict[str, str]],
        query: str | None,
    ) -> Any:
        # Controls that were drawn anew report themselves, unclicked.
        if not (replays or clears):
            return no_update
        if ctx.triggered_id == "whatif-clear":
            return with_changes(parse_query(query), (), ()).query()
        names = [own["name"] for own in ids]
        return changed_view(
            parse_query(query), fixes, dict(zip(names, values, strict=True))
        ).query()

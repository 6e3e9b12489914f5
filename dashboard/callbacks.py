"""What happens on navigation and on a click: every change goes through the URL.

A control writes the query of the address, and what is drawn follows the query.
So a reload, the back button and a shared link all show the same view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import Dash, Input, Output, Patch, State, ctx, no_update
from dash.development.base_component import Component

from meshscope.probe.schema.errors import MeshscopeError

from .api import LIST_MAX_NEW
from .pages import findings, mesh, overview, runs, shell, timeline
from .state import METRICS, ViewState, parse_path, parse_query
from .store import LoadedRun, RunStore
from .views import shown_step

_NS_PER_MS = 1e6

_PAGES: dict[str, Callable[[LoadedRun, ViewState], Component]] = {
    "overview": lambda run, _: overview.layout(run),
    "findings": lambda run, _: findings.layout(run),
    "timeline": timeline.layout,
    "mesh": mesh.layout,
}


def page_of(store: RunStore, path: str | None, query: str | None) -> Component:
    """Return the page at an address; what is wrong with it is shown, never raised."""
    if (path or "/") == "/":
        return runs.layout(store.entries(LIST_MAX_NEW), str(store.root))
    place = parse_path(path)
    if place is None or place[1] not in _PAGES:
        return shell.not_found("This address is no page of the dashboard.")
    try:
        return _PAGES[place[1]](store.get(place[0]), parse_query(query))
    except MeshscopeError as error:
        return shell.not_found(str(error))


def exists(store: RunStore, path: str) -> bool:
    """Return whether an address is the run list, or a page of a run in the folder."""
    if path == "/":
        return True
    place = parse_path(path)
    return place is not None and place[1] in _PAGES and store.path_of(place[0]) is not None


def register(app: Dash, store: RunStore) -> None:
    """Add the callbacks of all pages."""
    _register_navigation(app, store)
    _register_timeline(app, store)
    _register_mesh(app, store)


def _register_navigation(app: Dash, store: RunStore) -> None:
    @app.callback(Output("page", "children"), Input("url", "pathname"), State("url", "search"))
    def show_page(path: str | None, query: str | None) -> Component:
        return page_of(store, path, query)

    @app.callback(
        Output("runs-grid", "rowData"),
        Output("runs-summary", "children"),
        Output("runs-poll", "disabled"),
        Input("runs-poll", "n_intervals"),
        prevent_initial_call=True,
    )
    def fill_runs(_: int | None) -> tuple[list[dict[str, Any]], str, bool]:
        entries = store.entries(LIST_MAX_NEW)
        return runs.rows(entries), runs.summary(entries), not runs.any_pending(entries)

    @app.callback(
        Output("runs-grid", "dashGridOptions"),
        Input("runs-filter", "value"),
        prevent_initial_call=True,
    )
    def filter_runs(words: str | None) -> Patch:
        options = Patch()
        options["quickFilterText"] = words or ""
        return options


def _register_timeline(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("timeline-content", "children"),
        Output("timeline-step", "value"),
        Input("timeline-url", "search"),
        State("timeline-url", "pathname"),
        prevent_initial_call=True,
    )
    def draw(query: str | None, path: str | None) -> Any:
        run = _run_at(store, path)
        if run is None:
            return no_update, no_update
        state = parse_query(query)
        return timeline.content(run, state), str(shown_step(run, state))

    @app.callback(
        Output("timeline-url", "search"),
        Input("timeline-step", "value"),
        Input("timeline-previous", "n_clicks"),
        Input("timeline-next", "n_clicks"),
        Input("timeline-fit", "n_clicks"),
        State("timeline-url", "search"),
        State("timeline-url", "pathname"),
        prevent_initial_call=True,
    )
    def choose(
        step: str | None,
        _before: object,
        _after: object,
        _fit: object,
        query: str | None,
        path: str | None,
    ) -> Any:
        run = _run_at(store, path)
        if run is None:
            return no_update
        chosen = chosen_view(run, parse_query(query), str(ctx.triggered_id), step)
        return no_update if chosen is None else chosen.query()

    @app.callback(
        Output("timeline-url", "search", allow_duplicate=True),
        Input("timeline-graph", "relayoutData"),
        State("timeline-url", "search"),
        prevent_initial_call=True,
    )
    def zoom(relayout: dict[str, Any] | None, query: str | None) -> Any:
        changed = zoomed_view(parse_query(query), relayout)
        return no_update if changed is None else changed.query()


def _register_mesh(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("mesh-content", "children"),
        Input("mesh-url", "search"),
        State("mesh-url", "pathname"),
        prevent_initial_call=True,
    )
    def draw(query: str | None, path: str | None) -> Any:
        run = _run_at(store, path)
        return no_update if run is None else mesh.rank_step(run, parse_query(query))

    @app.callback(
        Output("mesh-url", "search"), Input("mesh-metric", "value"), prevent_initial_call=True
    )
    def choose(metric: str | None) -> Any:
        return ViewState(metric=metric).query() if metric in METRICS else no_update


def chosen_view(
    run: LoadedRun, state: ViewState, control: str, step: str | None
) -> ViewState | None:
    """Return the view after a control of the timeline was used; None for no change.

    Args:
        run: The shown run.
        state: The view before.
        control: Id of the control.
        step: Value of the step selector.
    """
    if control == "timeline-fit":
        return state.zoomed(None)
    if control == "timeline-step":
        same = step is None or not step.isdecimal() or int(step) == shown_step(run, state)
        return None if same else state.at_step(int(step or 0))
    return state.at_step(
        timeline.neighbour(run, state, -1 if control == "timeline-previous" else 1)
    )


def zoomed_view(state: ViewState, relayout: dict[str, Any] | None) -> ViewState | None:
    """Return the view after the figure was zoomed, panned or reset; None for no change.

    Args:
        state: The view before.
        relayout: What plotly reports; axis values are ms from the start of the step.
    """
    if not relayout:
        return None
    if relayout.get("xaxis.autorange"):
        return state.zoomed(None)
    borders = [relayout.get(f"xaxis.range[{end}]") for end in (0, 1)]
    if not all(isinstance(border, (int, float)) for border in borders):
        return None
    t0, t1 = (max(round(float(border) * _NS_PER_MS), 0) for border in borders if border is not None)
    same = (t0, t1) == (state.t0, state.t1) or t1 <= t0
    return None if same else state.zoomed((t0, t1))


def _run_at(store: RunStore, path: str | None) -> LoadedRun | None:
    """Return the run of an address that came from the browser, if there is one."""
    place = parse_path(path)
    try:
        return store.get(place[0]) if place else None
    except MeshscopeError:
        return None

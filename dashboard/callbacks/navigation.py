"""What happens on navigation and on a click: every change goes through the URL.

A control writes the query of the address, and what is drawn follows the query.
So a reload, the back button and a shared link all show the same view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import (
    ClientsideFunction,
    Dash,
    Input,
    Output,
    Patch,
    State,
    dcc,
    no_update,
)
from dash.development.base_component import Component

from meshscope.probe.schema.errors import MeshscopeError

from ..answers.views import with_before
from ..api.api import LIST_MAX_NEW
from ..pages import (
    compare,
    memory,
    mesh,
    runs,
    shell,
    summary,
    waiting,
)
from ..pages.page_list import PAGES
from ..runs.loaded_run import LoadedRun
from ..runs.page_maker import StillMeasuredError
from ..runs.store import RunStore
from ..view.addresses import inner
from ..view.state import METRICS, ViewState, parse_path, parse_query
from . import live as live_callbacks
from . import timeline as timeline_callbacks
from . import whatif as whatif_callbacks
from .controls import marked_view
from .shown_run import frame_of, run_at


def page_of(store: RunStore, path: str | None, query: str | None) -> Component:
    """Return the page at an address; what is wrong with it is shown, never raised."""
    own = inner(path)
    if own == "/":
        # What is new is analysed when the list asks again: it must not open minutes later.
        return runs.layout(store.entries(0), str(store.root))
    place = parse_path(own)
    if place is not None and place[1] in ("overview", summary.PAGE):
        is_known = place[1] == "overview" and store.is_analysed(place[0])
        large = None if is_known else store.summarised(place[0])
        if large is not None:
            return summary.layout(large, parse_query(query))
    if place is None or place[1] not in PAGES:
        return shell.not_found("This address is not a page of the dashboard.")
    try:
        state = parse_query(query)
        return store.drawn(place[0], lambda run: _drawn(store, run, place[1], state))
    except MeshscopeError as error:
        return shell.not_found(str(error))


def _drawn(store: RunStore, run: LoadedRun, page: str, state: ViewState) -> Component:
    try:
        content = PAGES[page].layout(store, run, state)
    except StillMeasuredError:
        content = waiting.layout(page)
    return shell.run_page(run, page, content, state, PAGES)


def exists(store: RunStore, path: str) -> bool:
    """Return whether an address is the run list, or a page of a run in the folder."""
    if path == "/":
        return True
    place = parse_path(path)
    if place is not None and place[1] == summary.PAGE:
        return store.summarised(place[0]) is not None
    return place is not None and place[1] in PAGES and store.path_of(place[0]) is not None


def register(app: Dash, store: RunStore) -> None:
    """Add the callbacks of all pages."""
    _register_navigation(app, store)
    _register_waiting(app, store)
    timeline_callbacks.register(app, store)
    _register_mesh(app, store)
    _register_compare(app, store)
    _register_memory(app, store)
    whatif_callbacks.register(app, store)
    live_callbacks.register(app, store)


def _register_navigation(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("page", "children"),
        Output("page-title", "data"),
        Input("url", "pathname"),
        State("url", "search"),
    )
    def show_page(path: str | None, query: str | None) -> tuple[Component, str]:
        return page_of(store, path, query), shell.title_of(path)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("meshscope", "setTitle"), Input("page-title", "data")
    )

    @app.callback(Output("charts", "children"), Input("url", "pathname"))
    def get_ready_for_charts(path: str | None) -> Any:
        # The browser reads the library of charts while it waits for the page.
        place = parse_path(inner(path))
        page = None if place is None else PAGES.get(place[1])
        is_summary = place is not None and place[1] == summary.PAGE
        has_chart = is_summary or (page is not None and page.has_chart)
        return dcc.Graph(config={"displayModeBar": False}) if has_chart else no_update

    @app.callback(
        Output("runs-grid", "rowData"),
        Output("runs-summary", "children"),
        Output("runs-poll", "interval"),
        Input("runs-poll", "n_intervals"),
        prevent_initial_call=True,
    )
    def fill_runs(_: int | None) -> tuple[list[dict[str, Any]], str, int]:
        entries = store.entries(LIST_MAX_NEW)
        return runs.rows(entries), runs.summary(entries), runs.poll_ms(entries)

    @app.callback(
        Output("page", "children", allow_duplicate=True),
        Input("runs-wait", "n_intervals"),
        prevent_initial_call=True,
    )
    def first_run(_: int | None) -> Any:
        entries = store.entries(0)
        return runs.layout(entries, str(store.root)) if entries else no_update

    @app.callback(
        Output("runs-grid", "dashGridOptions"),
        Input("runs-filter", "value"),
        prevent_initial_call=True,
    )
    def filter_runs(words: str | None) -> Patch:
        options = Patch()
        options["quickFilterText"] = words or ""
        return options


def _register_waiting(app: Dash, store: RunStore) -> None:
    """Add what shows a page once that is measured which it waits for."""

    @app.callback(
        Output("page-wait", "disabled"),
        Input("page-wait", "n_intervals"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def stop_looking(_: int | None, path: str | None) -> Any:
        # A page takes longer to draw than the browser waits for its next look: it would be drawn twice.
        run, place = run_at(store, path, "page"), parse_path(inner(path))
        page = None if place is None else PAGES.get(place[1])
        is_there = run is not None and page is not None and not page.is_waiting(run)
        return True if is_there else no_update

    @app.callback(
        Output("page", "children", allow_duplicate=True),
        Input("page-wait", "disabled"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def show_measured(is_over: object, path: str | None, query: str | None) -> Any:
        return page_of(store, path, query) if is_over else no_update


def _register_drawing(
    app: Dash,
    store: RunStore,
    page: str,
    field: str,
    content: Callable[[LoadedRun, ViewState], list[Component]],
    resolve: Callable[[LoadedRun, ViewState], ViewState] = lambda _, state: state,
) -> None:
    """Draw a page anew when its query changes, and set the one control that it has.

    Args:
        app: The dashboard.
        store: Its runs.
        page: Name of the page, with which the ids of its parts begin.
        field: Of the view, which the control shows.
        content: What the page shows.
        resolve: Fills in what the query leaves to the page.
    """

    @app.callback(
        Output(f"{page}-content", "children"),
        Output(f"{page}-{field}", "value"),
        Output(f"{page}-drawn", "data"),
        Output("json-link", "href", allow_duplicate=True),
        Output("run-tabs", "children", allow_duplicate=True),
        Output("ignored", "children", allow_duplicate=True),
        Input(f"{page}-url", "search"),
        State(f"{page}-url", "pathname"),
        State(f"{page}-drawn", "data"),
        prevent_initial_call=True,
    )
    def draw(query: str | None, path: str | None, drawn: str | None) -> Any:
        run, state = run_at(store, path, f"{page}-content"), parse_query(query)
        state = state if run is None else resolve(run, state)
        if run is None or state.is_asked_by(drawn):
            return (no_update,) * 6
        shown = content(run, state), getattr(state, field), state.query()
        return *shown, *frame_of(run, page, state)


def _register_mesh(app: Dash, store: RunStore) -> None:
    _register_drawing(app, store, "mesh", "metric", mesh.rank_step)

    @app.callback(
        Output("mesh-url", "search"),
        Input("mesh-metric", "value"),
        State("mesh-url", "search"),
        State("mesh-drawn", "data"),
        prevent_initial_call=True,
    )
    def choose(metric: str | None, query: str | None, drawn: str | None) -> Any:
        if metric not in METRICS or metric == parse_query(drawn).metric:
            return no_update
        return parse_query(query).of_metric(metric).query()

    @app.callback(
        Output("mesh-url", "search", allow_duplicate=True),
        Input("rank-step-graph", "clickData"),
        State("mesh-url", "search"),
        prevent_initial_call=True,
    )
    def mark(click: dict[str, Any] | None, query: str | None) -> Any:
        marked = marked_view(parse_query(query), click)
        return no_update if marked is None else marked.query()


def _register_memory(app: Dash, store: RunStore) -> None:
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("meshscope", "openTerms"),
        Output("memory-opened", "data"),
        Input("memory-graph", "clickData"),
        prevent_initial_call=True,
    )

    # A search for splits measures the run again: it must not hold up the page.
    @app.callback(
        Output("memory-balance", "children"),
        Input("memory-wait", "n_intervals"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def fill_balance(_: int | None, path: str | None) -> Any:
        run = run_at(store, path, "memory-balance")
        return no_update if run is None else memory.balance_content(run, store.root)


def _register_compare(app: Dash, store: RunStore) -> None:
    def content(run: LoadedRun, state: ViewState) -> list[Component]:
        return compare.content(store, run, state)

    def resolve(run: LoadedRun, state: ViewState) -> ViewState:
        return with_before(store, run, state)

    _register_drawing(app, store, "compare", "before", content, resolve)

    # Two large runs are measured for it: that must not hold up the page.
    @app.callback(
        Output("compare-content", "children", allow_duplicate=True),
        Input("compare-wait", "n_intervals"),
        State("compare-url", "search"),
        State("compare-url", "pathname"),
        prevent_initial_call=True,
    )
    def fill(_: int | None, query: str | None, path: str | None) -> Any:
        run = run_at(store, path, "compare-content")
        return no_update if run is None else compare.content(store, run, parse_query(query))

    @app.callback(
        Output("compare-url", "search"),
        Input("compare-before", "value"),
        State("compare-url", "search"),
        State("compare-drawn", "data"),
        prevent_initial_call=True,
    )
    def choose(run_id: str | None, query: str | None, drawn: str | None) -> Any:
        if run_id == parse_query(drawn).before:
            return no_update
        return parse_query(query).compared_with(run_id).query()

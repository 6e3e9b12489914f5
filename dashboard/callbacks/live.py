"""How pages follow a running job: the live page until it has ended, the others say that it has gone on."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, no_update

from meshscope.probe.schema.errors import MeshscopeError

from ..answers.live import live
from ..pages import live as page
from ..pages import shell
from ..runs.loaded_run import is_running
from ..runs.store import News, RunStore
from ..view.addresses import inner
from ..view.state import parse_path, parse_query


def register(app: Dash, store: RunStore) -> None:
    """Add the callback of the live page, and that of all others of a running job."""
    _register_news(app, store)
    _register_arming(app, store)

    @app.callback(
        Output("live-content", "children"),
        Output("live-poll", "disabled"),
        Output("run-facts", "children"),
        Input("live-poll", "n_intervals"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def follow(_: int | None, path: str | None, query: str | None) -> Any:
        place = parse_path(inner(path))
        if place is None:
            return (no_update,) * 3
        try:
            # A page that waited for each analysis would ask again before it has the answer.
            run = store.latest(place[0])
        except MeshscopeError as error:
            return shell.gone_notice(str(error)), True, no_update
        found = live(run)
        return page.content(run, parse_query(query), found), found["is_over"], shell.facts(run)


def _register_arming(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("live-arm-confirm", "displayed"),
        Input("live-arm", "n_clicks"),
        prevent_initial_call=True,
    )
    def ask(clicks: object) -> Any:
        return True if clicks else no_update

    @app.callback(
        Output("live-arm-said", "children"),
        Input("live-arm-confirm", "submit_n_clicks"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def arm(confirmed: object, path: str | None) -> Any:
        place = parse_path(inner(path))
        run_path = None if place is None else store.path_of(place[0])
        if not confirmed or run_path is None or place is None or store.arm is None:
            return no_update
        try:
            is_over = not is_running(store.latest(place[0]))
        except MeshscopeError as error:
            return shell.gone_notice(str(error))
        if is_over:
            return [shell.notice("Nothing is recorded: the job does not run any more.")]
        said = store.arm(run_path)
        return [shell.notice(said or "Nothing is recorded: no rank answers. Try meshscope arm.")]


def _register_news(app: Dash, store: RunStore) -> None:
    @app.callback(
        Output("news", "children"),
        Output("news-poll", "disabled"),
        Input("news-poll", "n_intervals"),
        State("news-since", "data"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def tell(_: int | None, since: str | None, path: str | None, query: str | None) -> Any:
        place = parse_path(inner(path))
        if place is None or not str(since).isdecimal():
            return no_update, no_update
        found = store.news(place[0], int(str(since)))
        if found is News.NONE:
            return no_update, no_update
        # Who was silent may go on.
        return shell.news(f"{path}{query or ''}", found), found is not News.SILENT

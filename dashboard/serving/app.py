"""The application: one store, the pages, the API and the guard around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dash_mantine_components as dmc
from dash import Dash, dcc, html
from flask import Flask, Response, request

from ..api import api
from ..callbacks import navigation
from ..figures.theme import FONT
from ..runs.background import Background
from ..runs.kept_analysis import KeptAnalyses
from ..runs.store import RunStore
from . import ahead, chart_library
from .proxy import Below
from .security import Access, guard

_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="prefetch" as="script" href="{charts}">
<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""

_THEME = {
    "fontFamily": FONT,
    "primaryColor": "blue",
    "defaultRadius": "sm",
}


def create_app(
    runs_dir: Path,
    *,
    access: Access | None = None,
    are_gone: Callable[[Path], bool] | None = None,
    analyses: KeptAnalyses | None = None,
    background: Background | None = None,
    arm: Callable[[Path], str] | None = None,
) -> Dash:
    """Return the dashboard of one folder of runs.

    Args:
        runs_dir: Folder whose entries are runs, or traces of other tools.
        access: Who may ask; by default, callers on this machine.
        are_gone: Tells of a run whether the processes of all its ranks are known to be gone.
        analyses: Where analyses are kept on disk; by default none is.
        background: Where what pages will ask for next is made; by default it waits for them.
        arm: Has the ranks of a run record some steps in depth, and returns what was agreed.

    Raises:
        ConfigError: ``runs_dir`` is no folder.
    """
    store = RunStore(runs_dir, are_gone=are_gone, analyses=analyses, background=background)
    store.arm = arm
    access = access or Access()
    app = Dash(
        __name__,
        assets_folder=str(Path(__file__).resolve().parents[1] / "assets"),
        serve_locally=True,
        requests_pathname_prefix=f"{access.prefix}/",
        routes_pathname_prefix="/",
        suppress_callback_exceptions=True,
        index_string=_INDEX.replace("{charts}", f"{access.prefix}/{chart_library.ADDRESS}"),
        title="meshscope",
        update_title=None,  # type: ignore[arg-type]
        # A tunnel to a cluster is slow, and the scripts shrink to a quarter.
        compress=True,
        # An environment variable can have Dash serve tools to language models: not of a run.
        enable_mcp=False,
    )
    # Flask-Compress 1.25 leaves the file open of what it compresses as a stream.
    app.server.config["COMPRESS_STREAMS"] = False
    app.layout = dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="page-title"),
            html.Div(id="page"),
            html.Div(id="charts", hidden=True),
        ],
        theme=_THEME,
        defaultColorScheme="auto",
    )
    navigation.register(app, store)
    _register_addresses(app.server, store)
    guard(app.server, access, list(app.csp_hashes()), lambda: app.callback_map)
    if access.prefix:
        app.server.wsgi_app = Below(app.server.wsgi_app, access.prefix)
    return app


def _register_addresses(server: Flask, store: RunStore) -> None:
    """Add what is not Dash's: the API, the library of charts, and what comes of asking for a page."""
    api.register(server, store)
    chart_library.register(server)
    _mark_missing_pages(server, store)
    if store.background is not None:
        ahead.register(server, store, Background())


def _mark_missing_pages(server: Flask, store: RunStore) -> None:
    """Answer 404 for a page that is not there; Dash serves its shell, which says so, as 200."""

    @server.after_request
    def mark(response: Response) -> Response:
        is_page = response.status_code == 200 and response.mimetype == "text/html"
        if is_page and not navigation.exists(store, request.path):
            response.status_code = 404
        return response

"""What a page will ask for is read while the browser still reads its scripts, which takes it a second."""

from __future__ import annotations

from flask import Flask, Response, request

from meshscope.probe.schema.errors import MeshscopeError

from . import views
from .background import Background
from .state import parse_path, parse_query
from .store import RunStore

_TIMELINE = "timeline"
_ELSEWHERE = ("cross-site", "same-site")


def register(server: Flask, store: RunStore, background: Background) -> None:
    """Begin to read the run of a page as soon as the page is asked for."""

    @server.after_request
    def begin(response: Response) -> Response:
        is_page = response.status_code == 200 and response.mimetype == "text/html"
        # Another site may lead here, but has nothing read.
        is_ours = request.headers.get("Sec-Fetch-Site", "") not in _ELSEWHERE
        if is_page and is_ours and request.method == "GET":
            path, query = request.path, f"?{request.query_string.decode('latin-1')}"
            background.later((path, query), lambda: prepare(store, path, query))
        return response


def prepare(store: RunStore, path: str, query: str) -> None:
    """Read what the page of a run shows; nothing of a run whose analysis is not at hand or on disk."""
    place = parse_path(path)
    if place is None or not store.is_ready(place[0]):
        return
    try:
        run = store.get(place[0])
        if place[1] == _TIMELINE:
            views.timeline(run, parse_query(query))
    except MeshscopeError:
        return  # The page says what is wrong.

"""What pages will ask for: the parts of figures from the start on, a run while the browser still reads its scripts."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from flask import Flask, Response, request

from meshscope.probe.schema.errors import MeshscopeError

from ..answers import views
from ..figures.theme import styled
from ..runs.background import Background
from ..runs.store import RunStore
from ..view.state import parse_path, parse_query

_TIMELINE = "timeline"
_ELSEWHERE = ("cross-site", "same-site")


def register(server: Flask, store: RunStore, background: Background) -> None:
    """Begin to read the run of a page as soon as the page is asked for, and the parts of figures at once."""
    background.later("figures", draw_nothing)

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


def draw_nothing() -> None:
    """Have plotly load what figures consist of: it does so at their first use, for a seventh of a second."""
    one = np.ones(1)
    bars = go.Bar(x=one, y=one, marker={"pattern": {"shape": "/"}})
    points = go.Scatter(x=one, y=one, line={"width": 1}, marker={"size": 1})
    cells = go.Heatmap(z=[one], colorbar={"title": {"text": "s"}})
    figure = go.Figure([bars, points, cells])
    figure.add_shape(type="line", line={"width": 1})
    figure.add_annotation(text="s", font={"size": 1})
    axis = {"title": {"text": "s", "font": {"size": 1}}}
    figure.update_layout(legend={"x": 0}, xaxis=axis, yaxis=axis)
    styled(figure, 100).to_plotly_json()

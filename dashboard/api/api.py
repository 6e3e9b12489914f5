"""The JSON twin of every page and the tiles of the timeline, under ``/api/v1``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Flask, Response, request

from meshscope.analyze.output.timeline.raster import MAX_WIDTH
from meshscope.analyze.wording.message import error_to_json
from meshscope.probe.schema.errors import MeshscopeError

from ..answers import views
from ..answers.instant import instant, sentences
from ..answers.trend import trend
from ..answers.trust import trust
from ..pages.page_list import PAGES
from ..plain.plain_json import plain_json
from ..runs.loaded_run import LoadedRun
from ..runs.page_maker import StillMeasuredError
from ..runs.store import RunStore
from ..timeline import tile
from ..view.state import ViewState, parse_query
from . import summary_api
from .perfetto import window_trace
from .spreadsheet import to_csv

LIST_MAX_NEW = 4
"""Runs that one request for the list may analyse."""
_RETRY_S = 2
"""After which a program may ask again for what is still measured."""

_WITHOUT_PAGE: dict[str, Callable[[LoadedRun], dict[str, Any]]] = {"balance": views.balance}
"""What is to be had as JSON alone."""
_SUSPECT_COLUMNS = (
    *("kind", "severity", "where", "ranks", "slowdown", "excess_ns", "cost_frac", "returns_frac"),
    *("returns_interval", "first_step", "last_step", "slow_steps", "confidence", "evidence"),
)
_REPLAY_COLUMNS = ("fix", "set", "step_time_ns", "predicted_step_time_ns", "error_ns", "gain_frac")
_RANK_COLUMNS = (
    *("rank", "pp", "dp", "tp", "host", "role", "is_culprit", "operation", "waited_ns", "places"),
    *("function", "callers", "last_issued", "silent_ns", "ended_by", "ended_after_ns"),
)
_OPERATION_COLUMNS = (
    *("operation", "kind", "group_id", "seq", "waiting", "missing", "delayed"),
    *("before_last_record_ns", "waited_ns", "places"),
)
_OVERHEAD_COLUMNS = (
    *("rank", "step", "level", "reason", "one_in", "steps", "dur_ns", "cost_ns", "cost_frac"),
)
_SHEETS: dict[tuple[str, str], Callable[[LoadedRun, ViewState], str]] = {
    ("overview", "trend"): lambda run, _state: to_csv(trend(run), ("step", "step_ns", "mfu")),
    ("stragglers", "suspects"): lambda run, state: to_csv(
        views.stragglers(run, state)["suspects"], _SUSPECT_COLUMNS
    ),
    ("hang", "ranks"): lambda run, _state: to_csv(views.hang(run)["ranks"], _RANK_COLUMNS),
    ("hang", "operations"): lambda run, _state: to_csv(
        views.hang(run)["operations"], _OPERATION_COLUMNS
    ),
    ("trust", "overhead"): lambda run, _state: to_csv(
        trust(run)["overhead"]["ranks"], _OVERHEAD_COLUMNS
    ),
    ("stragglers", "replay"): lambda run, state: to_csv(
        views.replay_rows(run, state), _REPLAY_COLUMNS
    ),
}
"""Tables of pages as CSV, by page and name."""


def register(server: Flask, store: RunStore) -> None:
    """Add the routes of the API."""
    api = Blueprint("api", __name__, url_prefix="/api/v1")

    @api.get("/runs")
    def runs() -> Response:
        return _json(views.run_list(store.entries(LIST_MAX_NEW)))

    @api.get("/runs/<run_id>/<page>.json")
    def twin(run_id: str, page: str) -> Response:
        if page in _WITHOUT_PAGE:
            return _json(store.drawn(run_id, _WITHOUT_PAGE[page]))
        if page not in PAGES:
            known = ", ".join([*PAGES, *_WITHOUT_PAGE])
            return _error(404, f"there is no page {page[:64]}; known: {known}")
        return _json(store.drawn(run_id, lambda run: PAGES[page].twin(store, run, _state())))

    @api.get("/runs/<run_id>/<page>/<name>.csv")
    def sheet(run_id: str, page: str, name: str) -> Response:
        table = _SHEETS.get((page, name))
        if table is None:
            known = ", ".join(f"{one}/{other}" for one, other in _SHEETS)
            return _error(404, f"there is no table {page[:64]}/{name[:64]}; known: {known}")
        text = store.drawn(run_id, lambda run: table(run, _state()))
        answer = Response(text, mimetype="text/csv")
        answer.headers["Content-Disposition"] = f'attachment; filename="{page}-{name}.csv"'
        return answer

    _register_windows(api, store)
    summary_api.register(api, store)

    @api.get("/<path:address>")
    def nothing(address: str) -> Response:
        return _error(404, f"there is nothing at {address[:128]}")

    @api.errorhandler(StillMeasuredError)
    def later(error: StillMeasuredError) -> Response:
        answer = _refusal(503, error_to_json(error))
        answer.headers["Retry-After"] = str(_RETRY_S)
        return answer

    @api.errorhandler(MeshscopeError)
    def missing(error: MeshscopeError) -> Response:
        return _refusal(404, error_to_json(error))

    server.register_blueprint(api)


def _register_windows(api: Blueprint, store: RunStore) -> None:
    """Add a window of the timeline as a picture, and as a trace."""

    @api.get("/runs/<run_id>/timeline/perfetto.json")
    def perfetto(run_id: str) -> Response:
        step, window = views.timeline(store.get(run_id), _state())
        answer = _json(window_trace(step, window))
        name = f"{run_id}-step-{step.step}.json"
        answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return answer

    @api.get("/runs/<run_id>/timeline/at.json")
    def at_instant(run_id: str) -> Response:
        row, at_ns = (request.args.get(name, type=int) for name in ("row", "at"))
        if row is None or at_ns is None:
            return _error(400, "row and at: a row from 0, and ns from the start of the step")
        is_whole = request.args.get("operation", default=1, type=int) != 0
        found = instant(store.get(run_id), _state(), row, at_ns, transfer=is_whole)
        return _json(found | {"sentences": sentences(found)})

    @api.get("/runs/<run_id>/tile.png")
    def picture(run_id: str) -> Response:
        step, window = views.timeline(store.get(run_id), _state())
        width = request.args.get("w", default=tile.DEFAULT_TILE_WIDTH, type=int)
        if not 0 < width <= MAX_WIDTH:
            return _error(400, f"w: the width is 1..{MAX_WIDTH} pixels")
        answer = Response(tile.tile(step, window, width), mimetype="image/png")
        answer.headers["Cache-Control"] = "private, max-age=60"
        return answer


def _state() -> ViewState:
    return parse_query(request.query_string.decode("latin-1"))


def _json(value: dict[str, Any]) -> Response:
    return Response(json.dumps(plain_json(value), allow_nan=False), mimetype="application/json")


def _error(status: int, message: str) -> Response:
    return _refusal(status, {"error": message})


def _refusal(status: int, refusal: dict[str, Any]) -> Response:
    return Response(json.dumps(refusal), status=status, mimetype="application/json")

"""Addresses of pages, answers and pictures, as a browser has to ask for them.

A reverse proxy may serve the dashboard below a path of its own. Inside, paths begin at the
root; only what goes to the browser, or comes from its address bar, has that path in front.
"""

from __future__ import annotations

from flask import has_request_context, request

from .state import ViewState


def public(path: str) -> str:
    """Return the address of a path, as the browser that asks now has to write it."""
    return f"{_prefix()}{path}"


def inner(path: str | None) -> str:
    """Return the path that an address of the browser stands for."""
    own = (path or "/").removeprefix(_prefix())
    return own if own.startswith("/") else f"/{own}"


def page_address(run_id: str, page: str, state: ViewState) -> str:
    """Return the address of a view of a page."""
    return public(f"/run/{run_id}/{page}{state.query()}")


def json_address(run_id: str, page: str, state: ViewState) -> str:
    """Return where a program gets what a page shows."""
    return public(f"/api/v1/runs/{run_id}/{page}.json{state.query()}")


def csv_address(run_id: str, page: str, table: str, state: ViewState) -> str:
    """Return where a table of a page is to be had as CSV."""
    return public(f"/api/v1/runs/{run_id}/{page}/{table}.csv{state.query()}")


def perfetto_address(run_id: str, state: ViewState) -> str:
    """Return where a window of the timeline is to be had as a trace for Perfetto."""
    return public(f"/api/v1/runs/{run_id}/timeline/perfetto.json{state.query()}")


def instant_address(run_id: str, state: ViewState) -> str:
    """Return the address of what a row of a view shows at an instant; ``row`` and ``at`` are to be added."""
    query = state.query()
    return public(f"/api/v1/runs/{run_id}/timeline/at.json{query}{'&' if query else '?'}")


def _prefix() -> str:
    """Return the path of the proxy without a slash at its end; empty without a proxy."""
    return request.script_root if has_request_context() else ""

"""The run that the browser shows: found again for a callback, and the frame that follows its view."""

from __future__ import annotations

from dash import set_props
from dash.development.base_component import Component

from meshscope.probe.schema.errors import MeshscopeError

from ..pages import shell
from ..pages.page_list import PAGES
from ..runs.loaded_run import LoadedRun
from ..runs.store import RunStore
from ..view.addresses import inner, json_address
from ..view.state import ViewState, parse_path


def frame_of(
    run: LoadedRun, page: str, state: ViewState
) -> tuple[str, list[Component], list[Component]]:
    """Return what follows the view around a page: the links to its JSON and to other pages, what is ignored."""
    links = shell.tabs(run, page, state, PAGES)
    return json_address(run.run_id, page, state), links, shell.rejected_notice(state.rejected)


def run_at(store: RunStore, path: str | None, view: str) -> LoadedRun | None:
    """Return the run of an address that came from the browser.

    Where it is gone or broken since the page was opened, the view says so and None is returned.
    """
    place = parse_path(inner(path))
    try:
        return store.get(place[0]) if place else None
    except MeshscopeError as error:
        set_props(view, {"children": shell.gone_notice(str(error))})
        return None

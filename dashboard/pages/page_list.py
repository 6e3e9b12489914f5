"""The pages of a run in the order of their tabs: what each draws, what its JSON twin says, what it may wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dash.development.base_component import Component

from ..answers import live as live_answer
from ..answers import trust as trust_answer
from ..answers import views
from ..answers.wait import wait_json
from ..runs.loaded_run import LoadedRun, placement
from ..runs.page_maker import StillMeasuredError
from ..runs.store import RunStore
from ..view.state import ViewState
from . import (
    communication,
    compare,
    findings,
    hang,
    kernels,
    links,
    live,
    memory,
    mesh,
    overview,
    stragglers,
    timeline,
    trust,
)

_Layout = Callable[[RunStore, LoadedRun, ViewState], list[Component]]
_Twin = Callable[[RunStore, LoadedRun, ViewState], dict[str, Any]]
_FIRST_S = 1.5
"""For so long the timeline is left to be drawn."""


class Page(NamedTuple):
    """One page of a run."""

    name: str
    """In addresses, and of its tab."""
    layout: _Layout
    twin: _Twin
    needs: Callable[[LoadedRun], object] | None = None
    """What it shows that may still be measured."""
    has_chart: bool = False
    """Whether it has a chart in any case."""

    def is_waiting(self, run: LoadedRun) -> bool:
        """Return whether a part of the page is still measured."""
        try:
            if self.needs is not None:
                self.needs(run)
        except StillMeasuredError:
            return True
        return False


def _timeline(store: RunStore, run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the timeline; a click on it, or a narrow window, then needs the operations of its step."""
    page, step = timeline.layout(run, state), views.shown_step(run, state)
    if store.background is not None:
        key = (run.run_id, run.version, "transfers", step)
        store.background.later(key, lambda: run.transfers(step), _FIRST_S)
    return page


_PAGES = (
    Page(
        "overview",
        lambda _, run, state: overview.layout(run, state),
        lambda _, run, __: views.overview(run),
        has_chart=True,
    ),
    Page(
        "live",
        lambda store, run, state: live.layout(run, state, can_arm=store.arm is not None),
        lambda _, run, __: live_answer.live(run),
        has_chart=True,
    ),
    Page(
        "findings",
        lambda _, run, state: findings.layout(run, state),
        lambda _, run, __: views.findings(run),
    ),
    Page(
        "stragglers",
        lambda _, run, state: stragglers.layout(run, state),
        lambda _, run, state: views.stragglers(run, state),
    ),
    Page(
        "hang",
        lambda _, run, state: hang.layout(run, state),
        lambda _, run, __: views.hang(run),
    ),
    Page(
        "timeline",
        _timeline,
        lambda _, run, state: views.timeline_json(run, state) | {"wait": wait_json(run, state)},
        has_chart=True,
    ),
    Page(
        "mesh",
        lambda _, run, state: mesh.layout(run, state),
        lambda _, run, state: views.mesh_json(run, state),
        needs=placement,
        has_chart=True,
    ),
    Page(
        "communication",
        lambda _, run, __: communication.layout(run),
        lambda _, run, __: views.communication(run),
        needs=LoadedRun.communication,
    ),
    Page(
        "links",
        lambda _, run, __: links.layout(run),
        lambda _, run, __: views.links(run),
        needs=LoadedRun.communication,
    ),
    Page(
        "memory",
        lambda _, run, __: memory.layout(run),
        lambda _, run, __: views.memory(run),
        needs=LoadedRun.memory,
    ),
    Page(
        "kernels",
        lambda _, run, state: kernels.layout(run, state),
        lambda _, run, __: views.kernels(run),
        needs=LoadedRun.kernels,
    ),
    Page("compare", compare.layout, views.comparison),
    Page(
        "trust",
        lambda _, run, state: trust.layout(run, state),
        lambda _, run, __: trust_answer.trust(run),
    ),
)
PAGES = {page.name: page for page in _PAGES}
"""All of them by name, in the order of their tabs."""

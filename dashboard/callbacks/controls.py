"""The view that a control asks for: a step, a button, a cell, a zoom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..answers.views import shown_step
from ..pages import timeline
from ..runs.loaded_run import LoadedRun
from ..view.state import ViewState, parse_query, whole_view, with_changes

_NS_PER_MS = 1e6


def stepped_view(
    run: LoadedRun, state: ViewState, drawn: ViewState, step: str | None
) -> ViewState | None:
    """Return the view after a step was selected; None where the page itself set the selector.

    Args:
        run: The shown run.
        state: The view that the address asks for.
        drawn: The view for which the selector was set. It is older than the address where the
            visitor went back meanwhile, whom the selector must not send forth again.
        step: Value of the selector.
    """
    same = step is None or not step.isdecimal() or int(step) == shown_step(run, drawn)
    return None if same else state.at_step(int(step or 0))


def chosen_view(run: LoadedRun, state: ViewState, control: str) -> ViewState:
    """Return the view after a button of the timeline was used.

    Args:
        run: The shown run.
        state: The view before.
        control: Id of the button.
    """
    if control == "timeline-fit":
        return whole_view(state)
    return state.at_step(
        timeline.neighbour(run, state, -1 if control == "timeline-previous" else 1)
    )


def marked_view(state: ViewState, click: dict[str, Any] | None) -> ViewState | None:
    """Return the view after a cell of rank and step was clicked; None for no change.

    Args:
        state: The view before.
        click: What plotly reports; the data of the point are rank and step, by their place.
    """
    try:
        place = (click or {})["points"][0]["customdata"]
        rank, step = int(place["0"]), int(place["1"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return state.at_step(step).around(rank) if step >= 0 else state.around(rank)


def changed_view(
    state: ViewState, fixes: Sequence[str] | None, settings: Mapping[str, str | None]
) -> ViewState:
    """Return the view with the changes that the controls of the replay hold.

    Args:
        state: The view before.
        fixes: What is chosen to be repaired.
        settings: Value of each setting by its name; empty for what stays as it is.
    """
    written = {name: str(value or "").strip() for name, value in settings.items()}
    chosen = with_changes(
        state,
        tuple(fixes or ()),
        tuple(f"{name}={value}" for name, value in written.items() if value),
    )
    # What comes from the browser is checked as an address is.
    return parse_query(chosen.query())


def zoomed_view(state: ViewState, relayout: dict[str, Any] | None) -> ViewState | None:
    """Return the view after the figure was zoomed, panned or reset; None for no change.

    Args:
        state: The view before.
        relayout: What plotly reports; axis values are ms from the start of the step.
    """
    if not relayout:
        return None
    if relayout.get("xaxis.autorange"):
        return whole_view(state)
    borders = [relayout.get(f"xaxis.range[{end}]") for end in (0, 1)]
    if not all(isinstance(border, (int, float)) for border in borders):
        return None
    t0, t1 = (max(round(float(border) * _NS_PER_MS), 0) for border in borders if border is not None)
    same = (t0, t1) == (state.t0, state.t1) or t1 <= t0
    return None if same else state.zoomed((t0, t1))

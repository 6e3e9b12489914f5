"""The wait at the place that a view of the timeline names: whom its rank waited for, as an arrow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..runs.loaded_run import LoadedRun
from ..view.state import ViewState
from .instant import instant
from .views import timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitArrow:
    """From the rank that came last to the one that waited for it; times are ns from the start of the step."""

    rank: int
    """Who waited."""
    row: int
    until_ns: float
    """When its wait was over."""
    waited_for: int
    """Who came last."""
    from_row: int
    came_ns: float
    """When that one came."""

    def is_in(self, window_ns: tuple[int, int]) -> bool:
        """Return whether some of it lies in a time window."""
        first, last = sorted((self.came_ns, self.until_ns))
        return last >= window_ns[0] and first <= window_ns[1]


def place_row(run: LoadedRun, state: ViewState) -> int | None:
    """Return the row of the rank at the place of a view; None without one, or where it is not shown."""
    ranks = timeline(run, state)[0].ranks
    return ranks.index(state.place[0]) if state.place and state.place[0] in ranks else None


def wait_arrow(run: LoadedRun, state: ViewState) -> WaitArrow | None:
    """Return the arrow of the place of a view; None where its rank waited for no rank that is known and in view."""
    row = place_row(run, state)
    if row is None or state.place is None:
        return None
    operation = instant(run, state, row, state.place[1])["operation"] or {}
    last, came, until = (operation.get(name) for name in ("waited_for", "came_ns", "until_ns"))
    step, window = timeline(run, state)
    ranks = step.ranks
    if came is None or until is None or last not in ranks:
        return None
    arrow = WaitArrow(
        rank=ranks[row],
        row=row,
        until_ns=until,
        waited_for=last,
        from_row=ranks.index(last),
        came_ns=came,
    )
    return arrow if arrow.is_in(window) else None


def wait_json(run: LoadedRun, state: ViewState) -> dict[str, Any] | None:
    """Return the arrow as plain values: rank, until_ns, waited_for, came_ns; None where none is drawn."""
    arrow = wait_arrow(run, state)
    if arrow is None:
        return None
    return {name: value for name, value in asdict(arrow).items() if not name.endswith("row")}

"""Which rows of all ranks the timeline shows, and which of them each shown row stands for."""

from __future__ import annotations

from dataclasses import dataclass

from meshscope.analyze.output.timeline.slices import StepSlices, ranks_around, with_marks

from ..runs.loaded_run import LoadedRun
from ..timeline.drawn_steps import MOST_ROWS
from ..view.state import ViewState

Span = tuple[int, int]
"""First and last of some rows, from 0, in the order of a view without pinned ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRows:
    """What the rows of a figure stand for."""

    count: int
    """All rows of the view: of all ranks, or of those in a group with the one it names."""
    shown: Span
    each: int
    """Ranks that share a row."""
    spans: tuple[Span | None, ...]
    """By shown row; None of a pinned one."""

    @property
    def pinned(self) -> int:
        """Return how many pinned rows there are; they come first."""
        return self.spans.count(None)

    @property
    def is_part(self) -> bool:
        """Return whether the address leaves rows out."""
        return self.shown != (0, self.count - 1)


def names_rank(run: LoadedRun, state: ViewState) -> bool:
    """Return whether a view is of the groups of one rank of the run."""
    return state.rank is not None and state.rank in run.trace.ranks


def is_beyond(run: LoadedRun, step: int, state: ViewState) -> bool:
    """Return whether the rows that an address asks for begin after the last one."""
    return state.rows is not None and state.rows[0] >= len(_order(run, step, state))


def drawn_rows(run: LoadedRun, step: int, state: ViewState) -> StepSlices:
    """Return a step in the rows that a view shows below the pinned ones."""
    order = _order(run, step, state)
    span = _span(state, len(order))
    if not names_rank(run, state):
        return run.rows(step, span)
    first, last = span or (0, len(order) - 1)
    near = run.drawn.of(step, order[first : last + 1])
    return with_marks(near, (int(state.rank or 0),))


def pinned_rows(run: LoadedRun, step: int, state: ViewState) -> StepSlices:
    """Return a step in the rows of the pinned ranks; those that the run lacks are left out."""
    pins = set(state.pins)
    ranks = run.drawn.outline(step).ranks if pins else ()
    return run.drawn.of(step, tuple(rank for rank in ranks if rank in pins))


def shown_rows(run: LoadedRun, step: StepSlices, state: ViewState) -> ShownRows:
    """Return what the rows of a drawn step stand for."""
    order = _order(run, step.step, state)
    first, last = _span(state, len(order)) or (0, len(order) - 1)
    each = 1 if names_rank(run, state) else -(-(last - first + 1) // MOST_ROWS)
    place = {rank: at for at, rank in enumerate(order)}

    def span_of(rank: int) -> Span | None:
        if rank in state.pins:
            return None
        begin = place[rank] - (place[rank] - first) % each
        return begin, min(begin + each - 1, last)

    return ShownRows(
        count=len(order), shown=(first, last), each=each, spans=tuple(map(span_of, step.ranks))
    )


def _order(run: LoadedRun, step: int, state: ViewState) -> tuple[int, ...]:
    """Return the ranks of all rows of a view, of which the address numbers some."""
    ranks = run.drawn.outline(step).ranks
    if not names_rank(run, state):
        return ranks
    return ranks_around(ranks, int(state.rank or 0), run.trace.layout)


def _span(state: ViewState, count: int) -> Span | None:
    """Return the rows that an address asks for, as far as there are any; None for all."""
    if state.rows is None or state.rows[0] >= count:
        return None
    span = state.rows[0], min(state.rows[1], count - 1)
    return None if span == (0, count - 1) else span

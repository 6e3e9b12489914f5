"""Which steps are recorded where a run records one window of steps in so many.

The choice looks at the number of the step alone, so that all ranks record the same steps
without talking. It is nested: whoever records one window in four records some of those
that others record who keep one in two.
"""

from __future__ import annotations

WINDOW_STEPS = 25
"""Steps of a window: enough for a step to be distinguished from its neighbours, and for what is set up at
the border of a window to cost nothing beside it."""
LEAD_STEPS = 5
"""Steps of a window before the multiple of ``WINDOW_STEPS`` that it is of. The first step of a window
pays for putting hooks in, and of the others each hundredth is kept record by record."""
ONE_IN = (1, 2, 4, 8, 16)
"""Of how many windows one may be recorded."""
MOST_ONE_IN = ONE_IN[-1]
"""The most of them."""
EARLY_WINDOW_STEPS = 5
"""Steps of the windows with which a run begins."""
_AT_ANY_PRICE = (0, 4)
"""Early windows that are recorded whatever they cost, so that a run of 30 steps has two of them: from one alone
chance makes ranks slow that are not."""
FIRST_SEQ_BITS = 20
"""Where a window is recorded, its operations are numbered anew from its first step times two to that power, so that
ranks which left out others give them the same numbers. On one group or channel there are fewer in a window."""
EARLY_STEPS = EARLY_WINDOW_STEPS * MOST_ONE_IN
"""So long windows are that short: of these steps too one in so many is recorded."""


def is_recorded(step: int, one_in: int) -> bool:
    """Tell whether a step is recorded.

    Args:
        step: The step, from 0.
        one_in: Of so many windows the first one is.
    """
    window = _window_of(step)
    return window % one_in == 0 or (step < EARLY_STEPS and window in _AT_ANY_PRICE)


def begins_window(step: int) -> bool:
    """Tell whether a step is the first of a window, recorded or not."""
    return next_window(step) == step


def next_window(step: int) -> int:
    """Return the first step from this one on with which a window begins, recorded or not."""
    if step <= EARLY_STEPS:
        return -(-step // EARLY_WINDOW_STEPS) * EARLY_WINDOW_STEPS
    return -(-(step + LEAD_STEPS) // WINDOW_STEPS) * WINDOW_STEPS - LEAD_STEPS


def _window_of(step: int) -> int:
    if step < EARLY_STEPS:
        return step // EARLY_WINDOW_STEPS
    return (step + LEAD_STEPS) // WINDOW_STEPS


def least_one_in(times_over: float) -> int | None:
    """Return of how many windows one may be recorded, so that that takes a part of what all take.

    None where even the least is too much.

    Args:
        times_over: What recording all of them takes, over what it may take.
    """
    return next((one_in for one_in in ONE_IN if times_over <= one_in), None)

"""Places that nothing can be compared with, and that are slow in some of their own steps.

The only group with transfers of a size, or the only one whose ends were seen, has no like. But a link
that gets bad, or comes and goes, has two kinds of steps with nothing between them, which
the noise of a wire does not have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...tables.arrays import FloatArray, numbers_in

MIN_GAP = 2.0
"""Least ratio of the fastest slow step to the slowest fast one."""
MIN_RATIO = 3.0
"""Least ratio of the mean slow step to the mean fast one."""
MIN_STEPS = 4
"""Least number of steps of either kind."""

PlaceKey = tuple[str, bool, str]
"""Axis, whether it is a link, and its name."""


class SlowSteps(NamedTuple):
    """Steps in which a place is slow against its other steps."""

    ratio: float
    """Mean wire time in these steps over that in the others."""
    step_frac: float
    """Share of the steps."""
    steps: frozenset[int]


def slow_steps_of_lone_places(
    frame: pd.DataFrame, relative: pd.Series, like: pd.Series, place: pd.Series
) -> dict[PlaceKey, SlowSteps]:
    """Return the places of which nobody has the like, and that are slow at times.

    Args:
        frame: The events, one row a member of each.
        relative: Wire time of each over the usual one; NaN if it is not known.
        like: Least size of the transfers that each is compared with, bytes.
        place: Group or link of each.
    """
    rows = frame[["axis", "is_p2p", "kind", "step"]].assign(
        like=like, place=place, relative=relative
    )
    rows = rows[rows["relative"].notna()]
    places = rows.groupby(["axis", "is_p2p", "kind", "like"], observed=True)["place"]
    rows = rows[places.transform("nunique") == 1]
    keys = ["axis", "is_p2p", "place"]
    of_step = rows.groupby([*keys, "step"], observed=True)["relative"].mean()
    found: dict[PlaceKey, SlowSteps] = {}
    for axis, is_p2p, name in rows[keys].drop_duplicates().itertuples(index=False):
        own = of_step.loc[(axis, is_p2p, name)]
        kinds = slow_kind(own.to_numpy(np.float64))
        if kinds is not None:
            is_slow, ratio = kinds
            steps = own.index[is_slow]
            key = (str(axis), bool(is_p2p), str(name))
            found[key] = SlowSteps(ratio, float(is_slow.mean()), frozenset(map(int, steps)))
    return found


def can_have_two_kinds(step: pd.Series) -> bool:
    """Tell whether there are as many steps as two kinds of them need."""
    return len(numbers_in(step.to_numpy())) >= 2 * MIN_STEPS


class TwoKinds(NamedTuple):
    """Which of some values are of the slow kind, and the ratio of the means of both."""

    is_slow: npt.NDArray[np.bool_]
    ratio: float


def slow_kind(values: FloatArray) -> TwoKinds | None:
    """Return which of some values are of a slow kind, and their ratio to the others.

    The border is the widest gap that leaves enough values on both sides; None where it is
    not wide enough.
    """
    ranked = np.sort(values)
    if len(ranked) < 2 * MIN_STEPS or ranked[0] <= 0:
        return None
    gaps = (
        ranked[MIN_STEPS : len(ranked) - MIN_STEPS + 1]
        / ranked[MIN_STEPS - 1 : len(ranked) - MIN_STEPS]
    )
    widest = int(gaps.argmax())
    if gaps[widest] < MIN_GAP:
        return None
    is_slow = values >= ranked[MIN_STEPS + widest]
    ratio = float(values[is_slow].mean() / values[~is_slow].mean())
    return TwoKinds(is_slow, ratio) if ratio >= MIN_RATIO else None

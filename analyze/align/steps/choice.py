"""Which of the common steps are analysed where a capture holds more of some than of others.

An account must not count communication that was not recorded as compute. So only the
steps of which the capture holds most are analysed, and what is not told of them is said.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import StepDetail

from ...wording.words import counted

MOST_OFF = 0.1
"""Share of the run by which the middle of the analysed steps may be off."""
_ORDER = list(StepDetail)
_HELD = {
    StepDetail.STEPS: "their length only",
    StepDetail.STAGES: "no communication",
    StepDetail.SUMS: "sums of communication",
}
_UNTOLD = {
    StepDetail.STEPS: (
        "the capture holds the length of steps only: where their time went is unknown"
    ),
    StepDetail.STAGES: (
        "communication was not recorded: it counts as compute in the spans around it, and as "
        "waiting outside of them"
    ),
    StepDetail.SUMS: (
        "the capture holds sums of communication only: waiting, transfers and axes are not "
        "separated, and no causes are reported"
    ),
}


class StepChoice(NamedTuple):
    """The steps of most detail."""

    steps: npt.NDArray[np.int64]
    detail: StepDetail
    limits: tuple[str, ...]


def most_detailed(frame: pd.DataFrame, common: npt.NDArray[np.int64]) -> StepChoice:
    """Return the common steps of which every rank holds as much as of any.

    Args:
        frame: Rows of the ``step`` table.
        common: Steps that every captured rank finished.
    """
    if not len(common) or frame["detail"].isna().all():
        return StepChoice(common, StepDetail.FULL, ())
    held = frame["detail"].astype(object).fillna(StepDetail.FULL.value).astype(str)
    codes = held.map({detail.value: code for code, detail in enumerate(_ORDER)})
    least = codes.groupby(frame["step"]).min().reindex(common)
    best = int(least.max())
    detail = _ORDER[best]
    limits = []
    if not (least == best).all():
        limits.append(_left_out(frame, least, best))
    if detail in _UNTOLD:
        limits.append(_UNTOLD[detail])
    return StepChoice(common[(least == best).to_numpy()], detail, tuple(limits))


def _left_out(frame: pd.DataFrame, least: pd.Series, best: int) -> str:
    """Return how many steps are not analysed, what is held of them, and how long they were."""
    others = least[least < best]
    counts = others.value_counts()
    parts = [
        f"{count} with {_HELD[_ORDER[code]]}"
        for code, count in zip(counts.index.astype(int).tolist(), counts.tolist(), strict=True)
    ]
    lengths = frame.groupby("step")["dur_ns"].mean()
    other_ms = lengths.reindex(others.index).mean() / 1e6
    own_ms = lengths.reindex(least.index[least == best]).mean() / 1e6
    return (
        f"{counted(len(others), 'step')} of {len(least)} left out of the account, as less is "
        f"known of them ({', '.join(parts)}); they took {other_ms:.4g} ms in the mean, those "
        f"of the account {own_ms:.4g} ms{_uneven(least.index.to_numpy(), (least == best).to_numpy())}"
    )


def _uneven(steps: npt.NDArray[np.int64], is_kept: npt.NDArray[np.bool_]) -> str:
    """Return where the analysed steps lie, if they are not spread over the run as all its steps are."""
    middle, own = float(np.median(steps)), float(np.median(steps[is_kept]))
    if abs(own - middle) <= MOST_OFF * (steps[-1] - steps[0]):
        return ""
    side = "before" if own < middle else "after"
    return (
        f". Half of those of the account lie {side} step {own:.0f}, so its shares are more of that part of "
        "the run than of the other: --steps FIRST:LAST looks at one of them"
    )

"""Which of the common steps are analysed where a capture holds more of some than of others.

An account must not count communication that was not recorded as compute. So only the
steps of which the capture holds most are analysed, and what is not known of them is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import StepDetail

from ...wording.limits import Limit
from ...wording.message import Message, message

MOST_OFF = 0.1
"""Share of the run by which the middle of the analysed steps may be off."""
_ORDER = list(StepDetail)


class StepChoice(NamedTuple):
    """The steps of most detail."""

    steps: npt.NDArray[np.int64]
    detail: StepDetail
    limits: tuple[Limit, ...]


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
    limits: list[Limit] = []
    if not (least == best).all():
        limits += _left_out(frame, least, best)
    limits += _not_separated(detail)
    return StepChoice(common[(least == best).to_numpy()], detail, tuple(limits))


def _not_separated(detail: StepDetail) -> Iterator[Limit]:
    """Yield what is not known of the analysed steps."""
    match detail:
        case StepDetail.STEPS:
            yield message("unknown.where_time_went")
        case StepDetail.STAGES:
            yield message("doubt.no_communication")
        case StepDetail.SUMS:
            yield message("unknown.sums_only")


def _held(detail: StepDetail, count: int) -> Message:
    match detail:
        case StepDetail.STEPS:
            return message("missing.held_length", count=count)
        case StepDetail.STAGES:
            return message("missing.held_no_communication", count=count)
        case _:
            return message("missing.held_sums", count=count)


def _left_out(frame: pd.DataFrame, least: pd.Series, best: int) -> Iterator[Limit]:
    """Yield how many steps are not analysed, what is held of them, and how long they were."""
    others = least[least < best]
    counts = others.value_counts()
    lengths = frame.groupby("step")["dur_ns"].mean()
    yield message(
        "missing.less_recorded",
        lost=len(others),
        steps=len(least),
        held=[
            _held(_ORDER[code], count)
            for code, count in zip(counts.index.astype(int).tolist(), counts.tolist(), strict=True)
        ],
        other_ns=float(lengths.reindex(others.index).mean()),
        own_ns=float(lengths.reindex(least.index[least == best]).mean()),
    )
    yield from _uneven(least.index.to_numpy(), (least == best).to_numpy())


def _uneven(steps: npt.NDArray[np.int64], is_kept: npt.NDArray[np.bool_]) -> Iterator[Limit]:
    """Yield where the analysed steps lie, if they are not spread over the run as all its steps are."""
    middle, own = float(np.median(steps)), float(np.median(steps[is_kept]))
    if abs(own - middle) <= MOST_OFF * (steps[-1] - steps[0]):
        return
    if own < middle:
        yield message("doubt.uneven_before", middle=round(own))
    else:
        yield message("doubt.uneven_after", middle=round(own))

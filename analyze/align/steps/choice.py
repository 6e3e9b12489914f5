"""Which of the common steps are analysed: by what the capture holds of them, their order in time, their length.

An account must not count communication that was not recorded as compute. So only the
steps of which the capture holds most are analysed, and what is not known of them is said.

Single steps may be so long that the mean step is like none of them. A compiler at work, a first save or a late connection takes seconds in a step or two, wherever
they lie. Such steps stay in the account, because what is in them was lost; but it is said how long
the step is without them.

The windows of steps follow one another in time, in the order of their numbers. The ledger gives each instant of a rank to one step, so its sums are exact only where the
windows of a rank neither change places nor share time. A counter that was set back, a
renumbered step or a wrong clock break that. Steps that contradict the order are left out, as
few as can be; windows that reach into the next one are cut where that begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import StepDetail

from ...tables.arrays import IntArray
from ...wording.limits import Limit
from ...wording.message import Message, message

MOST_OFF = 0.1
"""Share of the run by which the middle of the analysed steps may be off."""
MIN_BEYOND, MOST_SHOWN = 0.01, 3
"""Least share of all time that long steps take which are not analysed, to be named, and how many are."""
_ORDER = list(StepDetail)


class StepChoice(NamedTuple):
    """The steps of most detail."""

    steps: npt.NDArray[np.int64]
    detail: StepDetail
    limits: tuple[Limit, ...]
    of_all_ns: float | None = None
    """Mean length of all steps, also of those of less detail; None where all are chosen."""


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
    of_all_ns = None
    if not (least == best).all():
        lengths = frame.groupby("step")["dur_ns"].mean().reindex(common)
        of_all_ns = float(lengths.mean())
        limits += _left_out(lengths, least, best)
    limits += _not_separated(detail)
    return StepChoice(common[(least == best).to_numpy()], detail, tuple(limits), of_all_ns)


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


def _left_out(lengths: pd.Series, least: pd.Series, best: int) -> Iterator[Limit]:
    """Yield how many steps are not analysed, what is held of them, and how long they were."""
    others = least[least < best]
    counts = others.value_counts()
    yield message(
        "missing.less_recorded",
        lost=len(others),
        steps=len(least),
        held=[
            _held(_ORDER[code], count)
            for code, count in zip(counts.index.astype(int).tolist(), counts.tolist(), strict=True)
        ],
        other_ns=float(lengths[others.index].mean()),
        own_ns=float(lengths[least == best].mean()),
    )
    yield from _long_left_out(lengths, others.index)
    yield from _uneven(least.index.to_numpy(), (least == best).to_numpy())


def _long_left_out(length: pd.Series, left_out: pd.Index) -> Iterator[Limit]:
    """Yield what long steps took that are not analysed; saves and evaluations between two windows are such steps.

    Unlike long steps of the account, those that come every so many steps count too: no mean holds them.
    """
    usual = float(length.median())
    long = length[left_out][length[left_out] >= MIN_RATIO * usual]
    beyond = float((long - usual).sum()) / max(float(length.sum()), 1.0)
    if usual <= 0 or beyond < MIN_BEYOND:
        return
    yield message(
        "missing.long_left_out",
        long=len(long),
        ratio=MIN_RATIO,
        beyond=beyond,
        shown=[
            message("doubt.long_step", step=step, length_ns=ns)
            for step, ns in long.nlargest(MOST_SHOWN).items()
        ],
    )


def _uneven(steps: npt.NDArray[np.int64], is_kept: npt.NDArray[np.bool_]) -> Iterator[Limit]:
    """Yield where the analysed steps lie, if they are not spread over the run as all its steps are."""
    middle, own = float(np.median(steps)), float(np.median(steps[is_kept]))
    if abs(own - middle) <= MOST_OFF * (steps[-1] - steps[0]):
        return
    if own < middle:
        yield message("doubt.uneven_before", middle=round(own))
    else:
        yield message("doubt.uneven_after", middle=round(own))


MIN_RATIO = 3.0
"""From this many times the median on, a step is long."""
MAX_FRAC = 0.2
"""Largest share of the steps that may be long: more of them are a kind of step of their own."""
MIN_EXCESS = 0.1
"""Least share of all time that they take beyond the median, to be named."""


def long_steps_limit(frame: pd.DataFrame) -> list[Limit]:
    """Return what single long steps do to the mean, if they do.

    Args:
        frame: rank, step, start_ns and end_ns of the windows.
    """
    length = (frame["end_ns"] - frame["start_ns"]).groupby(frame["step"]).median()
    usual = float(length.median()) if len(length) else 0.0
    long = length[length >= MIN_RATIO * usual]
    if usual <= 0 or not len(long) or len(long) > MAX_FRAC * len(length):
        return []
    if len(long) > 2 and len(set(np.diff(long.index.to_numpy()).tolist())) == 1:
        return []  # Every so many steps: a kind of step of their own, which the mean rightly holds.
    beyond = float((long - usual).sum()) / float(length.sum())
    if beyond < MIN_EXCESS:
        return []
    return [
        message(
            "doubt.long_steps",
            long=len(long),
            steps=len(length),
            ratio=MIN_RATIO,
            shown=[
                message("doubt.long_step", step=step, length_ns=float(ns))
                for step, ns in zip(long.index.tolist(), long.tolist(), strict=True)
            ],
            beyond=beyond,
            rest_ns=float(length.drop(long.index).mean()),
        )
    ]


MAX_ROUNDING = 1e-3
"""Windows that share less of a step than this are cut without a word: tools round times to 1 us,
and clocks of hosts are corrected with a drift."""


class OrderedSteps(NamedTuple):
    """Rows of the ``step`` table of the steps that are left."""

    frame: pd.DataFrame
    steps: npt.NDArray[np.int64]
    limits: tuple[Limit, ...]


def without_repeats(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Limit]]:
    """Return possible windows, one a rank and step, sorted by both; the later one counts."""
    limits: list[Limit] = []
    possible = (frame["dur_ns"] >= 0).to_numpy(bool)
    if not possible.all():
        limits.append(message("missing.negative_steps", lost=int((~possible).sum())))
        frame = frame[possible]
    frame = frame.sort_values(["rank", "step", "start_ns"], ignore_index=True)
    repeated = frame.duplicated(["rank", "step"], keep="last").to_numpy(bool)
    if repeated.any():
        limits.append(message("assumed.repeated_steps", again=int(repeated.sum())))
        frame = frame[~repeated].reset_index(drop=True)
    return frame, limits


def in_order(frame: pd.DataFrame, common: npt.NDArray[np.int64]) -> OrderedSteps:
    """Return the windows of common steps that rise in time with their numbers, on every rank.

    Args:
        frame: Rows of the ``step`` table on one clock, sorted by rank and step.
        common: Steps that every rank in it has, sorted.
    """
    frame = frame[frame["step"].isin(common)].reset_index(drop=True)
    if len(common) < 2:
        return OrderedSteps(frame, common, ())
    start = frame["start_ns"].to_numpy(np.int64).reshape(-1, len(common))
    end = start + frame["dur_ns"].to_numpy(np.int64).reshape(start.shape)
    kept = _rising(start, end)
    limits: list[Limit] = []
    if len(kept) < len(common):
        lost = np.setdiff1d(common, common[kept])
        limits.append(message("missing.disordered_steps", lost=len(lost), steps=lost.tolist()))
        frame = frame[frame["step"].isin(common[kept])].reset_index(drop=True)
    start, end = start[:, kept], end[:, kept]
    shared = np.maximum(end[:, :-1] - start[:, 1:], 0)
    if shared.any():
        typical = float(np.median(end - start))
        end[:, :-1] -= shared
        frame["dur_ns"] = (end - start).ravel()
        if shared.max() > MAX_ROUNDING * typical:
            count, most_ns = int((shared > 0).sum()), float(shared.max())
            limits.append(message("assumed.cut_steps", count=count, most_ns=most_ns))
    return OrderedSteps(frame, common[kept], tuple(limits))


def _rising(start: IntArray, end: IntArray) -> IntArray:
    """Return the positions of steps of which both borders rise on every rank; ``(ranks, steps)``."""
    kept = np.arange(start.shape[1])
    while True:
        falls = np.diff(start[:, kept]) < 0
        falls |= np.diff(end[:, kept]) < 0
        disordered = falls.any(axis=1)
        if not disordered.any():
            return kept
        first = int(disordered.argmax())
        kept = kept[_longest_chain(start[first, kept], end[first, kept])]


def _longest_chain(start: IntArray, end: IntArray) -> IntArray:
    """Return the positions of the longest series of windows of which both borders rise.

    By dynamic programming over the last window; of equally long ones the first found.
    """
    length, before = np.ones(len(start), np.int64), np.full(len(start), -1)
    for last in range(1, len(start)):
        fits = (start[:last] <= start[last]) & (end[:last] <= end[last])
        best = int(np.where(fits, length[:last], 0).argmax())
        if fits[best]:
            length[last], before[last] = length[best] + 1, best
    chain = [int(length.argmax())]
    while before[chain[-1]] >= 0:
        chain.append(int(before[chain[-1]]))
    return np.array(chain[::-1])

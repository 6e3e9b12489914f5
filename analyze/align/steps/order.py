"""Steps whose windows follow one another in time, in the order of their numbers, on every rank.

The ledger gives each instant of a rank to one step, so its sums are exact only where the
windows of a rank neither change places nor share time. A counter that was set back, a
renumbered step or a wrong clock break that. Steps that contradict the order are left out, as
few as can be; windows that reach into the next one are cut where that begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...tables.arrays import IntArray
from ...wording.limits import Limit
from ...wording.message import message

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

"""Phases of a step: how much of each lies in any interval, and rates in them from counters that are read less often.

Bytes between two samples are the sum over phases of rate x time of the phase in between. Ordinary
least squares over all intervals gives the rates with their standard errors (Greene, Econometric
Analysis, chapter 4). Intervals pool over like steps in this way. Where all hold the same mix of
phases, as with steps much shorter than the interval, the errors are large: nothing is resolved.
Rates below 0 are set to 0, and the others fitted again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from meshscope.probe.schema.terms import Axis, SpanKind

from ...align.communication.events import CommunicationEvents
from ...align.steps.windows import StepWindows
from ...tables.arrays import FloatArray, IntArray
from ...tables.intervals import covered_length, pair, subtract, union
from ...tables.trace import Trace


class Phase(StrEnum):
    """A part of a step; an instant is of the first that holds."""

    GRADIENT_SUM = "gradient_sum"
    OPTIMIZER = "optimizer"
    BACKWARD = "backward"
    FORWARD = "forward"
    WAITING = "waiting"
    """None of the others: idle, host work, or waiting."""


_SPANS = {
    Phase.OPTIMIZER: (SpanKind.OPTIMIZER, SpanKind.GRAD_CLIP),
    Phase.BACKWARD: (
        *(SpanKind.BACKWARD, SpanKind.BACKWARD_INPUT, SpanKind.BACKWARD_WEIGHT),
        SpanKind.RECOMPUTE,
    ),
    Phase.FORWARD: (SpanKind.FORWARD,),
}


class HostPhases:
    """The phases of the ranks of one host: at each instant shares of its ranks.

    Args:
        trace: The capture.
        windows: Its analysed steps.
        events: Their communication.
        ranks: The ranks of the host.
    """

    def __init__(
        self, trace: Trace, windows: StepWindows, events: CommunicationEvents, ranks: list[int]
    ) -> None:
        self._ranks = [self._of_rank(trace, windows, events, rank) for rank in ranks]

    @staticmethod
    def _of_rank(
        trace: Trace, windows: StepWindows, events: CommunicationEvents, rank: int
    ) -> dict[Phase, IntArray]:
        frame = events.frame
        sums = frame[(frame["rank"] == rank) & (frame["axis"].astype(str) == Axis.DP.value)]
        sums = sums[sums["end_ns"].notna() & sums["wire_ns"].notna()]
        taken = union(pair(sums["split_ns"], sums["end_ns"]))
        found = {Phase.GRADIENT_SUM: taken}
        spans = windows.select(trace.rank_frame("span", rank))
        kind = spans["kind"].astype(str)
        on_device = spans["device_dur_ns"].notna()
        start = spans["device_start_ns"].where(on_device, spans["start_ns"]).astype("int64")
        length = spans["device_dur_ns"].where(on_device, spans["dur_ns"]).astype("int64")
        begin = windows.shifted(spans["step"], start)
        whole = np.column_stack([begin, begin + length.to_numpy(np.int64)])
        for phase, kinds in _SPANS.items():
            own = union(whole[kind.isin([one.value for one in kinds]).to_numpy(bool)])
            found[phase] = subtract(own, taken)
            taken = union(np.concatenate([taken, own]))
        return found

    def inside(self, begin_ns: FloatArray, end_ns: FloatArray) -> FloatArray:
        """Return the time of each phase in intervals, ns, the mean over ranks: (interval, phase)."""
        begin, end = (np.rint(times).astype(np.int64) for times in (begin_ns, end_ns))
        table = np.zeros((len(begin), len(Phase)))
        for place, phase in enumerate(list(Phase)[:-1]):
            covered = [covered_length(rank[phase], begin, end) for rank in self._ranks]
            table[:, place] = np.mean(covered, axis=0) if covered else 0.0
        table[:, -1] = end_ns - begin_ns - table[:, :-1].sum(axis=1)
        return table


LEAST_SPARE = 3
"""Intervals beyond the number of unknown rates."""
_WORST_CONDITION = 1e6
"""Above it phases that always come together have rates that are noise."""


class Rates(NamedTuple):
    """Rates by phase with their standard errors, bytes/s; NaN where not resolved."""

    rate: FloatArray
    error: FloatArray


def phase_rates(grown_bytes: FloatArray, inside_ns: FloatArray) -> Rates:
    """Return the rates in phases.

    Args:
        grown_bytes: (interval,) growth of a counter, NaN unknown.
        inside_ns: (interval, phase) time of each phase in the interval.

    Returns:
        (phase,) each; NaN where a phase is absent or the intervals do not separate it.
    """
    known = np.isfinite(grown_bytes)
    amount, seconds = grown_bytes[known], inside_ns[known] / 1e9
    count = inside_ns.shape[1]
    rate, error = np.full(count, np.nan), np.full(count, np.nan)
    present = np.flatnonzero(seconds.sum(axis=0) > 0)
    free = present
    while len(free):
        if len(amount) < len(free) + LEAST_SPARE:
            return Rates(rate, error)
        used = seconds[:, free]
        scale = np.sqrt((used**2).sum(axis=0))
        if np.linalg.cond(used / scale) > _WORST_CONDITION:
            return Rates(rate, error)
        found, *_ = np.linalg.lstsq(used / scale, amount, rcond=None)
        if (found >= 0).all():
            break
        free = free[found > found.min()]
    else:
        return Rates(rate, error)
    rest = amount - (used / scale) @ found
    spread = float(rest @ rest) / (len(amount) - len(free))
    inverse = np.linalg.inv((used / scale).T @ (used / scale))
    rate[present], error[present] = 0.0, 0.0
    rate[free] = found / scale
    error[free] = np.sqrt(np.maximum(spread * np.diag(inverse), 0.0)) / scale
    return Rates(rate, error)

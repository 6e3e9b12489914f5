"""How much of each phase of a step lies in any interval, per host."""

from __future__ import annotations

from enum import StrEnum

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

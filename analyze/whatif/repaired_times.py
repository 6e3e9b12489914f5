"""When everything that was recorded would have happened after repairs and speed-ups."""

from __future__ import annotations

import numpy as np

from ..intervals import IntArray
from ..program import Program
from ..replay import FloatArray


class RepairedTimes:
    """Recorded times carried over to the replay of the repaired program.

    Between two marks of a rank time runs evenly: what a repair takes from the work
    between them shortens all of it in proportion.
    """

    def __init__(self, program: Program, taken_ns: FloatArray) -> None:
        """Replay the program.

        Args:
            program: The replay graph.
            taken_ns: What the changes take from every edge, ``(edges,)``.
        """
        marks = program.marks
        left = program.base_ns - taken_ns
        nothing = np.zeros((program.edge_count, 1)), np.zeros((1, 1))
        ends = program.graph.replay(left, *nothing)[: len(marks), 0]
        arrived = ends.copy()
        edge = program.work_edges
        arrived[edge] = ends[marks["previous"].to_numpy()[edge]] + left[: len(edge)]
        self._ranks = program.windows.ranks
        recorded = np.column_stack([marks["start_ns"], marks["end_ns"]]).astype(np.float64)
        self._length = float(recorded.max() - recorded.min()) + 1.0
        place = self._place(marks["rank"].to_numpy())[:, None]
        # Waits that overlap would step back in time.
        self._recorded = np.maximum.accumulate((recorded + place).ravel())
        self._repaired = (np.column_stack([arrived, ends]) + place).ravel()
        self._wire_factor = np.ones(len(program.events))
        wire, event = program.wire_ns, marks["event"].to_numpy()[program.waits]
        is_known = wire > 0
        after = np.maximum(left[program.edge_count - len(wire) :], 0.0)
        self._wire_factor[event[is_known]] = after[is_known] / wire[is_known]

    def at(self, rank: IntArray, time_ns: IntArray) -> FloatArray:
        """Return when what was recorded at a time happens after the repair."""
        place = self._place(rank)
        return np.asarray(np.interp(time_ns + place, self._recorded, self._repaired) - place)

    def wire_factor(self, event: IntArray) -> FloatArray:
        """Return how long the transfer of each event takes now, as a share of before."""
        return self._wire_factor[event]

    def _place(self, rank: IntArray) -> FloatArray:
        """Return where the time line of each rank begins, with the ranks one after the other."""
        return np.searchsorted(self._ranks, rank) * self._length

"""When everything that was recorded would have happened after repairs and speed-ups."""

from __future__ import annotations

import numpy as np

from ...account.ledger.build import Ledger
from ...tables.arrays import FloatArray, IntArray
from ...tables.classes import class_code
from ...tables.intervals import covered_length, union
from ..replay.program import Program
from .repairs import Repair


class RepairedTimes:
    """Recorded times carried over to the replay of the repaired program.

    A stall that is repaired takes no time. Apart from these, time runs evenly between two
    marks of a rank: what a repair takes from the work there shortens all of it in proportion.
    """

    def __init__(self, program: Program, ledger: Ledger, repair: Repair) -> None:
        """Replay the program.

        Args:
            program: The replay graph.
            ledger: It says where the stalls are.
            repair: What the changes take.
        """
        marks = program.marks
        left = program.base_ns - repair.taken_ns
        nothing = np.zeros((program.edge_count, 1)), np.zeros((1, 1))
        ends = program.graph.replay(left, *nothing)[: len(marks), 0]
        arrived = ends.copy()
        edge = program.work_edges
        arrived[edge] = ends[edge - 1] + left[: len(edge)]
        recorded = np.column_stack([marks["start_ns"], marks["end_ns"]]).astype(np.int64)
        self._ranks = program.windows.ranks
        self._length = int(recorded.max() - min(recorded.min(), 0)) + 1
        place = self._place(marks["rank"].to_numpy())[:, None]
        self._stalls = self._where(ledger, repair.stalls)
        # Waits that overlap would step back in time.
        self._recorded = np.maximum.accumulate(self._without_stalls((recorded + place).ravel()))
        self._repaired = (np.column_stack([arrived, ends]) + place).ravel()
        self._wire_factor = np.ones(len(program.events))
        wire, event = program.wire_ns, marks["event"].to_numpy()[program.waits]
        is_known = wire > 0
        after = np.maximum(left[program.edge_count - len(wire) :], 0.0)
        self._wire_factor[event[is_known]] = after[is_known] / wire[is_known]

    def at(self, rank: IntArray, time_ns: IntArray) -> FloatArray:
        """Return when what was recorded at a time happens after the repair."""
        place = self._place(rank)
        known = self._without_stalls(time_ns + place)
        return np.asarray(np.interp(known, self._recorded, self._repaired) - place)

    def wire_factor(self, event: IntArray) -> FloatArray:
        """Return how long the transfer of each event takes now, as a share of before."""
        return self._wire_factor[event]

    def _place(self, rank: IntArray) -> IntArray:
        """Return where the time line of each rank begins, with the ranks one after the other."""
        return np.asarray(np.searchsorted(self._ranks, rank) * self._length)

    def _where(self, ledger: Ledger, stalls: tuple[str, ...]) -> IntArray:
        codes = list(map(class_code, stalls))
        found = ledger.segments[np.isin(ledger.segments["code"].to_numpy(), codes)]
        place = self._place(found["rank"].to_numpy())[:, None]
        return union(found[["start_ns", "end_ns"]].to_numpy(np.int64) + place)

    def _without_stalls(self, time: IntArray) -> FloatArray:
        """Return times on the line of all ranks, less what stalls took on it until then."""
        begin = np.full(len(time), min(0, int(time.min(initial=0))))
        return np.asarray(time - covered_length(self._stalls, begin, time), dtype=np.float64)

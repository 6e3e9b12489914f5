"""The critical path of a step, on the rows and the time axis of the timeline."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from meshscope.analyze import Trace
from meshscope.analyze.explain.run_account import Account
from meshscope.analyze.findings.critical_path import CriticalPath, critical_path
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.output.timeline.slices import StepSlices, in_window

MAX_PIECES = 1000
"""Visible pieces above which the outlines become too slow to zoom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPath:
    """The critical path of one step, with times after the earliest start of that step."""

    path: CriticalPath
    """Its pieces have a column more: row, -1 where it is not drawn."""

    def total_ns(self) -> int:
        """Return the length of all pieces."""
        return int(self.path.pieces["dur_ns"].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlines:
    """What is drawn of a path in a window."""

    window_ns: tuple[int, int]
    stretches: pd.DataFrame
    """What follows one another on a rank, as one: row, rank, start_ns, end_ns (cut at the
    window), pieces (how many), total_ns (their length, uncut), and of the longest of them:
    dur_ns, class, microbatch, group_id, link."""
    pieces: pd.DataFrame
    """The same columns for each piece; the stretches where there are too many pieces."""
    jumps: pd.DataFrame
    """at_ns, row_before, row_after: where the path goes from one rank to another."""
    left_out: int
    """Stretches that are too short, and too many, to be outlined."""


class LastAccount:
    """The account of the run that was analysed or asked for last: it is as large as its tables."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._lock = threading.Lock()
        # The trace of an account is another one where stamps were put in order.
        self._kept: tuple[Trace, Account] | None = None

    def keep(self, trace: Trace, account: Account) -> None:
        """Keep the account of a run that was measured already, in place of the one before."""
        with self._lock:
            self._kept = trace, account

    def of(self, trace: Trace) -> Account:
        """Return the account of a run; one at a time is measured, and one is kept.

        Raises:
            NoStepsError: It has no steps.
        """
        with self._lock:
            if self._kept is None or self._kept[0] is not trace:
                # Not two at once in memory.
                self._kept = None
                self._kept = trace, measure(trace)
            return self._kept[1]


def step_path(account: Account, drawn: StepSlices) -> StepPath:
    """Return the critical path of the step that is drawn.

    Raises:
        MeshscopeError: The run cannot be replayed, or the step is not among the analysed ones.
    """
    path = critical_path(account, drawn.step)
    step, origin = pd.Series([drawn.step]), pd.Series([drawn.origin_ns])
    begin_ns = int(account.windows.shifted(step, origin)[0])
    row = {rank: at for at, rank in enumerate(drawn.ranks)}
    pieces = path.pieces.assign(
        start_ns=path.pieces["start_ns"] - begin_ns,
        end_ns=path.pieces["end_ns"] - begin_ns,
        row=path.pieces["rank"].map(row).astype(np.int64),
    )
    start, end = path.start_ns - begin_ns, path.end_ns - begin_ns
    return StepPath(path=replace(path, start_ns=start, end_ns=end, pieces=pieces))


def on_rows(shown: StepPath, ranks: tuple[int, ...]) -> StepPath:
    """Return a path on the rows of these ranks."""
    pieces = shown.path.pieces
    row = pd.Index(ranks).get_indexer(pd.Index(pieces["rank"]))
    return replace(shown, path=replace(shown.path, pieces=pieces.assign(row=row)))


def outlines(shown: StepPath, window_ns: tuple[int, int]) -> Outlines:
    """Return what to draw of a path in a window.

    Of more than ``MAX_PIECES`` stretches only the longest are outlined.
    """
    pieces = in_window(shown.path.pieces, window_ns)
    row = pieces["row"].to_numpy(np.int64)
    is_move = (row[1:] != row[:-1]) & (np.minimum(row[1:], row[:-1]) >= 0)
    moves = np.flatnonzero(is_move)
    at = pieces["start_ns"].to_numpy(np.int64)[moves + 1]
    jumps = pd.DataFrame({"at_ns": at, "row_before": row[moves], "row_after": row[moves + 1]})
    pieces = pieces.assign(
        start_ns=pieces["start_ns"].clip(*window_ns), end_ns=pieces["end_ns"].clip(*window_ns)
    )
    pieces = pieces.assign(pieces=1, total_ns=pieces["dur_ns"])
    stretches = _joined(pieces)
    pieces, stretches = pieces[pieces["row"] >= 0], stretches[stretches["row"] >= 0]
    length = stretches["end_ns"] - stretches["start_ns"]
    longest = stretches.loc[length.nlargest(MAX_PIECES).index.sort_values()]
    return Outlines(
        window_ns=window_ns,
        stretches=longest,
        pieces=pieces if len(pieces) <= MAX_PIECES else longest,
        jumps=jumps,
        left_out=len(stretches) - len(longest),
    )


def _joined(pieces: pd.DataFrame) -> pd.DataFrame:
    """Return one row for all pieces that follow one another on a rank."""
    row = pieces["row"].to_numpy(np.int64)
    stretch = np.cumsum(np.append(0, row[1:] != row[:-1])[: len(row)])
    groups = pieces.reset_index(drop=True).groupby(stretch)
    longest = pieces.iloc[groups["dur_ns"].idxmax().to_numpy()].reset_index(drop=True)
    return longest.assign(
        start_ns=groups["start_ns"].min(),
        end_ns=groups["end_ns"].max(),
        pieces=groups.size(),
        total_ns=groups["total_ns"].sum(),
    )

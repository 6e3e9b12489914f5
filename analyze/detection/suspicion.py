"""What the detection says to the attribution: whom to suspect, and what work was expected."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pandas as pd

from ..effects import Work
from ..ledger import Ledger
from ..steps import StepWindows
from ..trace import Trace
from .cube import FloatArray
from .detect import detect
from .durations import own_durations
from .results import DetectionResult
from .verdict import Evidence

MIN_STEPS = 3
"""With fewer steps their noise is not known, and the detection stays out."""
EXPLAINED = 0.5
"""A rank is cleared when at least this share of its excess is unequal work."""


def detect_in(trace: Trace, windows: StepWindows, ledger: Ledger) -> DetectionResult | None:
    """Return the detection on a capture, or None where it shows no microbatches or few steps."""
    if len(windows.steps) < MIN_STEPS or len(windows.ranks) < 2:
        return None
    durations = own_durations(trace, windows, ledger)
    if not (durations["dur_ns"] > 0).any():
        return None
    return detect(durations, trace.layout)


def expected_work(
    work: Work, peer_ns: FloatArray, detection: DetectionResult | None, clocked: Set[int]
) -> FloatArray:
    """Return what each cell should have taken; NaN where nothing tells.

    For slow ranks that were found by the work of other stages or by their own past it is
    their own time less the slow-down, in the steps in which they were slow: their peers
    had other microbatches. For all others it is the work of their peers.

    Args:
        work: The work of all ranks, without what slow clocks cost.
        peer_ns: What the peers of each cell's rank worked.
        detection: Its slow-downs.
        clocked: Ranks with a slow clock, whose slow-downs contain what is taken out already.
    """
    if detection is None:
        return peer_ns
    expected = peer_ns.copy()
    rank, step = work.cells["rank"].to_numpy(), work.cells["step"].to_numpy()
    own, compute = work.cells["work_ns"].to_numpy(), work.cells["compute_ns"].to_numpy()
    for verdict in detection.suspects:
        if verdict.evidence is Evidence.PEERS or not verdict.slowdown or verdict.rank in clocked:
            continue
        mine = rank == verdict.rank
        bad = mine & (step >= verdict.first_bad_step) & (step <= verdict.last_bad_step)
        extra = compute * verdict.slowdown / (1.0 + verdict.slowdown)
        expected[mine] = np.where(bad, own - extra, own)[mine]
    return expected


def cleared_ranks(ranks: pd.DataFrame, detection: DetectionResult | None) -> list[int]:
    """Return ranks whose excess over their peers is unequal work.

    Args:
        ranks: rank and excess_ns (mean per step), as ``excess_by_rank`` returns them.
        detection: Verdicts; those on the work of other stages count.
    """
    if detection is None:
        return []
    excess = dict(zip(ranks["rank"].tolist(), ranks["excess_ns"].tolist(), strict=True))
    cleared = []
    for verdict in detection.verdicts:
        work, own = verdict.unequal_work_ns, excess.get(verdict.rank, np.nan)
        if verdict.is_slow or verdict.evidence is not Evidence.WORK or work is None:
            continue
        if own > 0 and work >= EXPLAINED * own:
            cleared.append(verdict.rank)
    return cleared

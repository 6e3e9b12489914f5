"""What the detection says to the attribution: whom to suspect, and what work was expected.

Comparisons between ranks see no step that takes longer on all of them: such steps are found here. So
are ranks that are slow just as all their replicas are: the stage has more to do then. With two replicas neither rank is a witness of the other one, and each is found slow against its
own past. That both of them broke in the same steps is the less likely explanation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout

from ...account.ledger.build import Ledger
from ...align.steps.microbatch_work import FEATURES
from ...align.steps.windows import StepWindows
from ...tables.trace import Trace
from ..causes.effects import Expected, Work
from .detect import detect
from .durations import own_durations
from .results import DetectionResult
from .settings import DetectionSettings
from .two_kinds import with_slow_steps_of_single_ranks
from .verdict import Evidence, RankVerdict, calmed

MIN_ALIKE = 0.7
"""Least slow-down over the largest one of the replicas, and least part of all their slow steps that
each of them has."""


def without_whole_stages(result: DetectionResult, layout: ParallelLayout | None) -> DetectionResult:
    """Return the verdicts, with no rank blamed for what all its replicas show in the same steps.

    Args:
        result: The verdicts of all ranks.
        layout: The mesh; without one, or with one replica, nothing changes.
    """
    if layout is None or layout.dp < 2:
        return result
    replicas: dict[tuple[int, ...], list[RankVerdict]] = defaultdict(list)
    for verdict in result.verdicts:
        at = layout.coordinates(verdict.rank)
        replicas[tuple(at[axis] for axis in sorted(at) if axis != "dp")].append(verdict)
    alike = {own.rank for place in replicas.values() if _are_alike(place) for own in place}
    verdicts = [calmed(own) if own.rank in alike else own for own in result.verdicts]
    verdicts.sort(key=lambda own: not own.is_slow)
    return replace(result, verdicts=tuple(verdicts))


def _are_alike(place: Sequence[RankVerdict]) -> bool:
    """Return whether all of several ranks are slow at times, in the same steps and by as much."""
    slowdowns = [own.slowdown or 0.0 for own in place]
    if len(place) < 2 or not all(own.is_slow for own in place):
        return False
    steps = [
        {step for first, last in own.slow_steps for step in range(first, last + 1)} for own in place
    ]
    whole = set.union(*steps)
    in_same_steps = min(map(len, steps)) >= MIN_ALIKE * len(whole)
    return in_same_steps and min(slowdowns) >= MIN_ALIKE * max(slowdowns)


JOB_WANDER = 0.01
"""Standard deviation by which a healthy job changes slowly. Ranks share a room, a power limit and a
data set, so that it is larger than that of a rank; the seeded jobs of ``bench.detection`` go up to it."""
_UNIT = 1e6
"""Quotients in parts per million: the quantile takes whole numbers as they are."""


def slow_together(
    durations: pd.DataFrame, windows: StepWindows, detection: DetectionResult
) -> RankVerdict | None:
    """Return in which steps all ranks took longer for their work, None if they did not.

    The job is judged as one rank would be that took the median of all that are not slow
    themselves, by its past. Its work is known from that of its microbatches, or by the tokens of its
    steps, where all have them.
    """
    slow = {verdict.rank for verdict in detection.suspects}
    own = durations[~durations["rank"].isin(slow) & (durations["dur_ns"] > 0)]
    if own["rank"].nunique() < 2:
        return None
    usual = own.groupby(["rank", "kind", "chunk"])["dur_ns"].transform("mean")
    keys = ["step", "kind", "chunk", "microbatch"]
    # The lower median: what half of the ranks do not take longer, all of them do not.
    job = (
        (_UNIT * own["dur_ns"] / usual)
        .groupby([own[key] for key in keys])
        .quantile(0.5, interpolation="lower")
    )
    table = job.rename("dur_ns").reset_index().assign(rank=0)
    if set(FEATURES) <= set(own.columns):
        means = own.groupby(keys)[list(FEATURES)].mean()
        table[list(FEATURES)] = means.reindex(pd.MultiIndex.from_frame(table[keys])).to_numpy()
        return _judged(table)
    tokens = windows.step_tokens()
    if tokens is not None:
        table["tokens"] = table["step"].map(pd.Series(tokens, index=windows.steps))
    return _judged(table)


def _judged(table: pd.DataFrame) -> RankVerdict | None:
    verdict = detect(table, None, DetectionSettings(wander=JOB_WANDER)).of(0)
    return verdict if verdict.is_slow else None


MIN_STEPS = 3
"""With fewer steps their noise is not known, and the detection stays out."""
EXPLAINED = 0.5
"""A rank is cleared when at least this share of its excess is unequal work."""


def detect_in(trace: Trace, windows: StepWindows, ledger: Ledger) -> DetectionResult | None:
    """Return the detection on a capture, or None where it shows no microbatches or few steps.

    A single rank is judged by its own past, and by the other stages. None is blamed for what all its replicas show in the same steps.
    """
    if len(windows.steps) < MIN_STEPS:
        return None
    durations = own_durations(trace, windows, ledger)
    if not (durations["dur_ns"] > 0).any():
        return None
    result = without_whole_stages(detect(durations, trace.layout), trace.layout)
    result = with_slow_steps_of_single_ranks(result, durations, trace.layout)
    return replace(result, together=slow_together(durations, windows, result))


def expected_work(
    work: Work,
    peers: Expected,
    seen_by_peers: set[int],
    detection: DetectionResult | None,
    clocked: Set[int],
) -> Expected:
    """Return what each cell should have taken.

    It is the work of the peers, on the rank's own microbatches where that is known. Where it
    is not, and the peers do not show the excess of a slow rank, or it has none, it is the
    rank's own time less the slow-down, in the steps in which it was slow: an average, which
    does not tell where in a step the time was lost. So are the steps in which it issued what
    none of its peers did, as where records were lost.

    Args:
        work: The work by cell, without what slow clocks cost.
        peers: What the peers of each cell's rank worked, or would have on its microbatches.
        seen_by_peers: Ranks that exceed their peers by more than noise.
        detection: The slow ranks.
        clocked: Ranks with a slow clock, whose slow-downs contain what is taken out already.
    """
    slower = [] if detection is None else [one for one in detection.suspects if one.slowdown]
    if not slower:
        return peers
    expected, is_known = peers.work_ns.copy(), peers.unequal_ns is not None
    rank, step = work.cells["rank"].to_numpy(), work.cells["step"].to_numpy()
    own, compute = work.cells["work_ns"].to_numpy(), work.cells["compute_ns"].to_numpy()
    for verdict in slower:
        if verdict.rank in clocked:
            continue
        mine = rank == verdict.rank
        compared = np.isfinite(expected[mine]).any() and (
            is_known or verdict.rank in seen_by_peers or verdict.evidence is Evidence.PEERS
        )
        if compared:
            mine &= np.isnan(expected)
        bad = mine & np.logical_or.reduce(
            [(step >= first) & (step <= last) for first, last in verdict.slow_steps]
        )
        slowdown = verdict.slowdown or 0.0
        extra = compute * slowdown / (1.0 + slowdown)
        expected[mine] = np.where(bad, own - extra, own)[mine]
    return peers._replace(work_ns=expected)


def steps_of_slow(
    ranks: Iterable[int], detection: DetectionResult | None
) -> dict[int, Sequence[tuple[int, int]]]:
    """Return the runs of slow steps of each rank that is slow; none where they are not known."""
    verdicts = () if detection is None else detection.suspects
    runs: dict[int, Sequence[tuple[int, int]]] = dict.fromkeys(ranks, ())
    return runs | {own.rank: own.slow_steps for own in verdicts if own.rank in runs}


def without_ranks(
    detection: DetectionResult | None, ranks: Sequence[int]
) -> DetectionResult | None:
    """Return the detection with none of some ranks found slow."""
    if detection is None or not ranks:
        return detection
    verdicts = [calmed(own) if own.rank in ranks else own for own in detection.verdicts]
    verdicts.sort(key=lambda own: not own.is_slow)
    return replace(detection, verdicts=tuple(verdicts))


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

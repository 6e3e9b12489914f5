"""In which steps a rank is slow, and by how much there, in words."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...explain.run_account import Account
from ...explain.slow_ranks import DetectionResult, Evidence, Persistence, RankVerdict
from ...wording.message import Message, message
from .bad_steps import MOST_LEFT, BadSteps, all_steps
from .late_outside_passes import LateOutsidePasses


def verdict_on(detection: DetectionResult | None, rank: int) -> RankVerdict | None:
    """Return the verdict of the detection on a rank, None where it does not find it slow."""
    suspects = () if detection is None else detection.suspects
    return next((verdict for verdict in suspects if verdict.rank == rank), None)


def slow_steps(account: Account, detection: DetectionResult | None, rank: int) -> BadSteps | None:
    """Return the steps in which a rank was slow, None where that is not known.

    Of a rank that the detection does not find slow, the steps that stand out by themselves, if
    they hold most of its excess.
    """
    score = _scores(detection, rank)
    if len(account.windows.steps) == 1:
        return all_steps(account.windows)
    if detection is None or score.empty:
        return None
    steps, verdict = account.windows.steps, detection.of(rank)
    slow = np.zeros(len(steps), dtype=bool)
    for first, last in verdict.slow_steps:
        slow |= (steps >= first) & (steps <= last)
    excess = score.reindex(steps).fillna(0.0).to_numpy(np.float64)
    held = float(excess[slow].sum() / excess.sum()) if excess.sum() > 0 else 0.0
    if not slow.any() or not (verdict.is_slow or held > 1.0 - MOST_LEFT):
        return None
    return BadSteps(tuple(steps[slow].tolist()), tuple(steps.tolist()), min(held, 1.0))


def _scores(detection: DetectionResult | None, rank: int) -> pd.Series[float]:
    """Return how much longer than expected each step of a rank took; empty where that is not known."""
    if detection is None:
        return pd.Series(dtype=np.float64)
    own = detection.scores[detection.scores["rank"] == rank]
    return own.set_index("step")["score"].dropna()


class Slowness(NamedTuple):
    """How slow a rank is while it is slow, and when."""

    slower_frac: float
    when: Message | None
    """In which steps; None where it is so over all of them, or these are not known."""


def slowness(
    own: dict[Hashable, Any],
    detection: DetectionResult | None,
    when: BadSteps | None,
    late: LateOutsidePasses | None,
) -> Slowness:
    """Return how slow a rank is in its slow steps; over all where these are not known.

    Also over all if a slow clock is a cause of its own: the detection does not know of clocks.
    """
    if when is None or when.are_all or own["clock_ns"] > 0:
        return Slowness(float(own["slowdown"]) - 1.0, None)
    if late is not None:
        return Slowness(late.slowdown, when.message)
    verdict, rank = verdict_on(detection, int(own["rank"])), int(own["rank"])
    if verdict is not None and verdict.slowdown is not None:
        return Slowness(verdict.slowdown, when.message)
    score = _scores(detection, rank)
    return Slowness(float(score[score.index.isin(when.steps)].mean()), when.message)


def detected(account: Account, detection: DetectionResult | None, rank: int) -> Iterator[Message]:
    """Say how sure the slow-down of a rank is, since when it is so, and whether it still is."""
    verdict, when = verdict_on(detection, rank), slow_steps(account, detection, rank)
    score = _scores(detection, rank)
    if when is None or score.empty:
        return
    if verdict is None or verdict.slowdown is None or verdict.interval is None:
        inside = score.index.isin(when.steps)
        if not inside.all():
            other = float(score[~inside].mean())
            yield message("straggler_rank.elsewhere", slower=other)
        return
    low, high = verdict.interval
    against = _against(verdict.evidence)
    yield message("straggler_rank.interval", low=low, high=high, against=against)
    yield from _how_long(verdict, when)
    if verdict.ambiguous_with:
        yield message("straggler_rank.ambiguous", ranks=list(verdict.ambiguous_with))


def _against(evidence: Evidence) -> Message:
    """Return what a suspect was compared with."""
    if evidence is Evidence.WORK:
        return message("straggler_rank.against_work")
    if evidence is Evidence.HISTORY:
        return message("straggler_rank.against_history")
    return message("straggler_rank.against_peers")


def _how_long(verdict: RankVerdict, when: BadSteps) -> Iterator[Message]:
    """Say in which steps a rank is slow, and whether it still is.

    Of one that is slow now and then nobody knows: a healthy last step may be one more of its breaks.
    """
    last = when.steps[-1]
    if when.are_all:
        yield message("straggler_rank.always", when=when.message)
    elif verdict.persistence is Persistence.PERSISTENT:
        yield message("straggler_rank.since", first=when.steps[0])
    elif verdict.persistence is Persistence.INTERMITTENT or not when.has_ended:
        bad, analysed = len(when.steps), len(when.analysed)
        yield message("straggler_rank.now_and_then", bad=bad, analysed=analysed, last=last)
    else:
        yield message("straggler_rank.over", last=last)

"""In which steps a rank is slow, and by how much there, in words."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..account import Account
from ..detection import DetectionResult, Evidence, Persistence, RankVerdict
from ..words import counted
from .bad_steps import MOST_LEFT, BadSteps, all_steps
from .late_steps import LateSteps


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

    slowdown: float
    suffix: str


def slowness(
    own: dict[Hashable, Any],
    detection: DetectionResult | None,
    when: BadSteps | None,
    late: LateSteps | None,
) -> Slowness:
    """Return how slow a rank is in its slow steps; over all where these are not known.

    Also over all if a slow clock is a cause of its own: the detection does not know of clocks.
    """
    if when is None or when.are_all or own["clock_ns"] > 0:
        return Slowness(float(own["slowdown"]) - 1.0, "")
    if late is not None:
        return Slowness(late.slowdown, f" {when.words}")
    verdict, rank = verdict_on(detection, int(own["rank"])), int(own["rank"])
    if verdict is not None and verdict.slowdown is not None:
        return Slowness(verdict.slowdown, f" {when.words}")
    score = _scores(detection, rank)
    return Slowness(float(score[score.index.isin(when.steps)].mean()), f" {when.words}")


_AGAINST = {
    Evidence.PEERS: "its peers",
    Evidence.WORK: "its peers, with the work of each microbatch divided out",
    Evidence.HISTORY: "its own other steps",
}


_USUAL = {Evidence.HISTORY: "in its other steps"}


def usual(verdict: RankVerdict) -> str:
    """Return what a suspect takes longer than."""
    return _USUAL.get(verdict.evidence, "expected")


def detected(account: Account, detection: DetectionResult | None, rank: int) -> Iterator[str]:
    """Say since when the rank is slow, by how much, and how sure that is."""
    verdict, when = verdict_on(detection, rank), slow_steps(account, detection, rank)
    score = _scores(detection, rank)
    if when is None or score.empty:
        return
    if verdict is None or verdict.slowdown is None or verdict.interval is None:
        inside = score.index.isin(when.steps)
        rest = "" if inside.all() else f", and {_percent(score[~inside])} in the others"
        yield (
            f"its forward and backward take {_percent(score[inside])} longer than expected "
            f"{when.words}{rest}"
        )
        return
    low, high = verdict.interval
    yield (
        f"its forward and backward take {verdict.slowdown:.1%} (95 % interval {low:.1%} to "
        f"{high:.1%}) longer {_how_long(verdict, when)}, against {_AGAINST[verdict.evidence]}"
    )
    if verdict.ambiguous_with:
        others = counted(len(verdict.ambiguous_with), "other rank")
        named = ", ".join(map(str, verdict.ambiguous_with))
        yield f"{others} ({named}) being slow would explain the durations as well"


def _percent(score: pd.Series[float]) -> str:
    """Return a mean score; little less than nothing is 0.0 % as well."""
    return f"{round(float(score.mean()), 3) + 0.0:.1%}"


def _how_long(verdict: RankVerdict, when: BadSteps) -> str:
    """Return in which steps a rank is slow, and whether it still is."""
    if when.are_all:
        return when.words
    is_over = "" if when.steps[-1] == when.analysed[-1] else ", and no longer"
    if verdict.persistence is Persistence.PERSISTENT:
        return f"from step {when.steps[0]} on"
    on_and_off = verdict.persistence is Persistence.INTERMITTENT
    return f"{'on and off, ' if on_and_off else ''}{when.words}{is_over}"

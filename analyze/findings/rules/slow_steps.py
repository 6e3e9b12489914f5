"""In which steps a rank is slow or late, by how much there, and what the other steps say of it.

The detection looks at forward and backward passes. Of a rank that is held up between them, by a
blocking call or by code of the training loop, it sees nothing but noise, and the steps of that noise are not those
in which the rank is late.

The other steps of a rank that is slow now and then ran on the same machines, so that the difference shows what its slow steps are longer, whatever
the replay takes to depend on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...align.steps.paired_steps import Longer, longer_steps
from ...explain.causes import ranks_of
from ...explain.causes.gain_interval import CERTAIN
from ...explain.run_account import Account
from ...explain.slow_ranks import DetectionResult, Evidence, Persistence, RankVerdict
from ...tables.classes import COMPUTE_CLASSES, UNSEPARATED
from ...tables.results import Cause
from ...wording.message import Message, message
from .bad_steps import MOST_LEFT, BadSteps, all_steps, bad_steps
from .pauses import own_work

PASSES_TELL = 0.5
"""Least part of what a rank works longer than its peers that its passes hold, for their steps to be its own."""
PASSES = (*(name for name in COMPUTE_CLASSES if name != "optimizer"), UNSEPARATED)
"""Ledger classes of what the detection looks at."""


class LateOutsidePasses(NamedTuple):
    """When a rank is late outside of its passes, and by how much there."""

    when: BadSteps
    slowdown: float
    """Of its own work in these steps, over that of its peers."""
    longer_ns: float
    """By how much its own work exceeds that of its peers in these steps, mean."""
    elsewhere_ns: float
    """The same in the other steps; 0 where there are none."""

    @property
    def facts(self) -> Iterator[Message]:
        """Say when it is late and by how much, as evidence."""
        if self.when.are_all:
            yield message("straggler_rank.late_always")
            return
        when = self.when.message
        yield message("straggler_rank.late_outside", longer_ns=self.longer_ns, when=when)
        yield message("straggler_rank.late_elsewhere", longer_ns=self.elsewhere_ns)


def late_outside_passes(account: Account, rank: int) -> LateOutsidePasses | None:
    """Return when a rank is late outside of its passes.

    None where its passes hold most of what it works longer, or it has no peers to compare it with.
    """
    peers = account.peers_of(rank)
    if not peers:
        return None
    work = own_work(account)
    usual = work[peers].median(axis=1)
    excess = work[rank] - usual
    passes = account.ledger.by_step.assign(
        inside=account.ledger.by_step[list(PASSES)].sum(axis=1)
    ).pivot(index="step", columns="rank", values="inside")
    inside = float((passes[rank] - passes[peers].median(axis=1)).mean())
    if excess.mean() <= 0 or inside >= PASSES_TELL * excess.mean():
        return None
    # By the excess alone: chance in the other steps of a noisy host is worth a finding as soon as the cause is large.
    when = bad_steps(account.windows, excess, None)
    is_late = excess.index.isin(when.steps)
    expected = float(usual[is_late].sum())
    return LateOutsidePasses(
        when=when,
        slowdown=float(excess[is_late].sum()) / expected if expected > 0 else float("inf"),
        longer_ns=float(excess[is_late].mean()),
        elsewhere_ns=0.0 if is_late.all() else float(excess[~is_late].mean()),
    )


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


def with_other_steps(account: Account) -> Account:
    """Return the account with intervals of removal gains that hold what the other steps say.

    Where a repair is said to return more than the slow steps are longer, or less, something changes
    with the rank that the replay knows nothing of, or something else differs between the two kinds of
    steps. Which of them, nothing tells: the interval reaches as far as the steps show.
    """
    attribution = account.attribution
    if attribution is None:
        return account
    causes = tuple(_widened(account, cause) for cause in attribution.causes)
    return replace(account, attribution=replace(attribution, causes=causes))


def against_other_steps(account: Account, rank: int) -> Iterator[Message]:
    """Say what the steps of a rank that is slow now and then show by themselves."""
    longer = _longer(account, rank)
    if longer is None or longer.longer_ns <= 0:
        return
    step_ns = account.windows.step_time_ns
    yield message(
        "straggler_rank.slow_steps_longer",
        steps=longer.steps,
        longer_ns=longer.longer_ns,
        others=longer.others,
        error_ns=longer.error_ns,
    )
    share = longer.of_mean_step() / step_ns
    error = longer.of_mean_step(1.0) / step_ns - share
    yield message("straggler_rank.slow_steps_share", share=share, error=error)
    if longer.bad_steps:
        low, high = (ns / step_ns for ns in longer.range_of_mean_step())
        ends = {"low": max(low, 0.0), "high": high}
        yield message("straggler_rank.slow_steps_range", bad=longer.bad_steps, **ends)


def _widened(account: Account, cause: Cause) -> Cause:
    interval = cause.removal_gain_interval
    if cause.kind != "straggler_rank" or interval is None:
        return cause
    longer = _longer(account, ranks_of(cause)[0])
    if longer is None:
        return cause
    step_ns = account.windows.step_time_ns
    least, most = (max(0.0, ns / step_ns) for ns in longer.range_of_mean_step(CERTAIN))
    low, high = interval
    return replace(cause, removal_gain_interval=(min(low, least), max(high, most)))


def _longer(account: Account, rank: int) -> Longer | None:
    """Return by how much the slow steps of a rank are longer; None where it is slow in all of them."""
    late = late_outside_passes(account, rank)
    runs: Sequence[tuple[int, int]] = ()
    if late is not None:
        runs = [(run[0], run[-1]) for run in late.when.runs]
    elif account.attribution is not None:
        verdict = verdict_on(account.attribution.detection, rank)
        runs = () if verdict is None else verdict.slow_steps
    return longer_steps(account.windows, runs)

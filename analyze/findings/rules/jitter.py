"""Ranks that are late by chance: no rank is slow, and yet the others wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ...explain.causes.pieces import Runs
from ...explain.jitter_cost import JitterCost, jitter_cost
from ...explain.run_account import Account
from ...tables.results import Finding
from ...wording.message import Message, message
from .bad_steps import all_steps
from .grading import MIN_COST, severity
from .late_in_turn import late_in_turn
from .pauses import even_work, pauses
from .starved import CONFIDENCE as CROWDED
from .starved import PROCESSORS_FIRST, chance_of_processors

LATE_TOGETHER = 0.5
"""Share of the loss from which all ranks are late in the same steps."""
QUANTILES = (0.5, 0.9, 0.99)
CONFIDENCE = 0.8
_SHOWN = 8
CONFIDENCE_OF_ONE_STEP = 0.4
"""One step does not tell a rank that is late by chance from one that is slow."""
STEADY_SHARE = 0.5
"""Share of the loss that one rank makes in its median step, from which on it may be slow. Chance that falls on any
rank leaves about 1 / sqrt(n) after n steps."""


def jitter(account: Account) -> Iterator[Finding]:
    """Work that differs from step to step without a rank, a stage, data or a stall behind it.

    Less what single pauses cost, which have findings of their own.
    """
    cause = next(iter(account.causes("jitter")), None)
    if cause is None:
        return
    paused = sum(finding.cost_frac or 0.0 for finding in pauses(account))
    share, gain = cause.share_frac - paused, cause.removal_gain_frac - paused
    cost = max(share, gain)
    if cost < MIN_COST:
        return
    late = late_steps_of_ranks(account)
    moved = jitter_cost(late.to_numpy(np.float64))
    steady = _steadily_late(account) if gain >= MIN_COST else None
    when = all_steps(account.windows)
    in_turn = late_in_turn(account.events.frame) if steady is None else []
    if in_turn:
        yield _in_turn(account, (share, gain), in_turn)
        return
    crowding = chance_of_processors(account, cost)
    confidence = CONFIDENCE if len(late) > 1 else CONFIDENCE_OF_ONE_STEP
    yield Finding(
        kind=FindingKind.JITTER,
        severity=severity(cost),
        where=when.where,
        claim=_claim(late, cost, steady),
        cost_frac=share,
        removal_gain_frac=gain,
        confidence=min(confidence, CROWDED) if crowding else confidence,
        evidence=(
            *crowding,
            *(_distribution(late) if steady is None else _of_one_rank(steady, len(late))),
            *(_remedies(account, moved, gain) if steady is None else ()),
        ),
        remedy=PROCESSORS_FIRST if crowding else _remedy(late, moved, steady),
    )


def _in_turn(account: Account, price: tuple[float, float], last_at: list[Message]) -> Finding:
    """Return that ranks are late one after the other: share of the step that it costs, and that its repair returns."""
    when = all_steps(account.windows)
    return Finding(
        kind=FindingKind.JITTER,
        severity=severity(max(price)),
        where=when.where,
        claim=message("jitter.claim_in_turn", cost=max(price)),
        cost_frac=price[0],
        removal_gain_frac=price[1],
        confidence=CONFIDENCE,
        evidence=(
            message("jitter.in_turn", steps=len(account.windows.steps), ranks=last_at[:_SHOWN]),
        ),
        remedy=message("jitter.remedy_in_turn"),
        cause="in_turn",
    )


class _Steady(NamedTuple):
    """A rank that is late in most steps, too few of them to call it slow."""

    rank: int
    late_ns: float
    """By how much it exceeds the median of its peers, in its median step."""


def _steadily_late(account: Account) -> _Steady | None:
    """Return the rank that makes much of the loss in its median step, None where any may be late.

    Suspects have findings of their own. A single step is no median.
    """
    work = even_work(account)
    if account.attribution is None or len(work) < 2:
        return None
    ranks = account.attribution.ranks.set_index("rank")
    judged = work.T.loc[lambda rows: ~ranks["suspect"].reindex(rows.index, fill_value=True)]
    if judged.empty:
        return None
    late = judged - judged.groupby(ranks["peer_class"].reindex(judged.index)).transform("median")
    usual, lost_ns = late.median(axis=1), float(late.max().mean())
    if lost_ns <= 0 or usual.max() < STEADY_SHARE * lost_ns:
        return None
    return _Steady(int(usual.index[int(usual.argmax())]), float(usual.max()))


def _of_one_rank(steady: _Steady, steps: int) -> Iterator[Message]:
    """Say whose lateness the steps do not explain by chance, nor prove."""
    yield message("jitter.steady", rank=steady.rank, late_ns=steady.late_ns, steps=steps)


def _claim(late: pd.DataFrame, cost: float, steady: _Steady | None) -> Message:
    if len(late) < 2:
        return message("jitter.claim_one_step", cost=cost)
    if late.shape[1] == 1:
        return message("jitter.claim_alone", cost=cost)
    if steady is not None:
        return message("jitter.claim_few_steps", cost=cost, steps=len(late))
    return message("jitter.claim", cost=cost)


def late_steps_of_ranks(account: Account) -> pd.DataFrame:
    """Return by how much each rank (columns) is late in each step, ns: beyond its own median step.

    Of a rank that is slow in some steps, these have a median of their own: what it is slow by is no chance.
    """
    work = even_work(account)
    late = work - work.median()
    detection = None if account.attribution is None else account.attribution.detection
    for verdict in () if detection is None else detection.suspects:
        if verdict.rank in late:
            late[verdict.rank] = _beyond_own_kind(work[verdict.rank], verdict.slow_steps)
    return late


def _beyond_own_kind(work: pd.Series[float], slow_steps: Runs) -> pd.Series[float]:
    """Return by how much each step exceeds the median of the slow, or of the other, steps of a rank, ns."""
    step = work.index.to_numpy()
    is_slow = np.zeros(len(step), dtype=bool)
    for first, last in slow_steps:
        is_slow |= (step >= first) & (step <= last)
    return work - work.groupby(is_slow).transform("median")


def _distribution(late: pd.DataFrame) -> Iterator[Message]:
    """Say how late the last rank of a step is, and which ranks these are; of a single step nothing is usual."""
    if len(late) < 2:
        return
    if late.shape[1] == 1:
        beyond = late.iloc[:, 0]
        longest = {"step": int(str(beyond.idxmax())), "late_ns": float(beyond.max())}
        yield message("jitter.longest_step", **longest, steps=len(late))
        return
    median, p90, p99 = late.max(axis=1).quantile(list(QUANTILES)).tolist()
    most = float(late.to_numpy(np.float64).max())
    yield message("jitter.latest", median_ns=median, p90_ns=p90, p99_ns=p99, most_ns=most)
    counts = late.idxmax(axis=1).value_counts().sort_index()
    named = [message("jitter.who_of", rank=rank, steps=count) for rank, count in counts.items()]
    yield message("jitter.who", counts=named, steps=len(late))


def _remedies(account: Account, moved: JitterCost, gain: float) -> Iterator[Message]:
    """Say what removing, synchronising or joining the late steps would return."""
    if gain < MIN_COST:
        return
    yield message("jitter.gain", gain=gain)
    layout = account.trace.layout
    if min(len(account.windows.ranks), len(account.windows.steps)) < 2 or (
        layout is not None and layout.pp > 1
    ):
        return
    yield message("jitter.gain_same_steps", gain=moved.same_steps_return * gain)
    gains = [
        message("jitter.gain_every", gain=moved.every_returns(steps) * gain, steps=steps)
        for steps in moved.every_ns
    ]
    if gains:
        yield message("jitter.gain_fewer_syncs", gains=gains)


def _remedy(late: pd.DataFrame, moved: JitterCost, steady: _Steady | None) -> Message:
    """Return what to do about it."""
    if len(late) < 2:
        return message("jitter.remedy_one_step")
    if late.shape[1] == 1:
        return message("jitter.remedy_alone")
    if steady is not None:
        return message("jitter.remedy_few_steps", rank=steady.rank)
    common = float(late.median(axis=1).clip(lower=0.0).mean())
    if late.shape[1] > 2 and common >= LATE_TOGETHER * moved.lost_ns > 0:
        return message("jitter.remedy_together")
    return message("jitter.remedy")

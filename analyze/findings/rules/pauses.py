"""Ranks that stood still in a step or two: no slow ranks, and yet time lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ...explain.causes import ranks_of
from ...explain.not_recorded import MAX_UNSEEN
from ...explain.run_account import Account
from ...tables.classes import STALLS, UNSPLIT, WAIT_CLASSES, WIRE_CLASSES
from ...tables.results import Finding, Where
from ...wording.message import message
from .bad_steps import BadSteps
from .grading import severity

MIN_LOST = 0.03
"""Share of the analysed time that a pause must cost."""
DEVIATIONS = 5.0
"""Standard deviations of usual steps by which the work of a step with a pause is longer."""
MOST_STEPS = 0.2
"""Share of the steps from which on a rank is slow now and then, which other rules find."""
FEWEST_STEPS = 5
"""With fewer, no step is usual."""
USUAL_PART, DEVIATIONS_OF_PART = 0.9, 1.645
"""Share of normal values that lie closer to their mean than so many standard deviations."""
BEYOND_CHANCE = 8.0
"""Standard deviations of what the data changes in a step, beyond which that is no matter of data. Long
sequences have long tails."""
TO_DEVIATION = 1.4826
"""Standard deviation of normal values over their median distance from the median."""
LEAST_DEVIATION = 0.005
"""That of a step, as a share of its work."""


def pauses(account: Account) -> Iterator[Finding]:
    """Steps in which one rank alone works far longer than in its others, and nothing says why.

    None where waiting cannot be distinguished from working: a rank that waits long for another one would pause.
    """
    if len(account.windows.steps) < FEWEST_STEPS or account.attribution is None:
        return
    if account.events.unseen_frac > MAX_UNSEEN:
        return
    work = even_work(account)
    usual = work.median()
    excess = work - usual
    deviation = np.maximum(TO_DEVIATION * excess.abs().median(), LEAST_DEVIATION * usual)
    length = account.ledger.by_step.groupby("step")["step_ns"].max().reindex(work.index)
    beyond = (length - length.median()).clip(lower=0.0)
    named = _named_otherwise(account)
    for rank in work.columns[(excess > DEVIATIONS * deviation).any()].astype(int).tolist():
        own = _beyond_peers(account, (work, excess), rank)
        lost = own.clip(upper=beyond).where(own > DEVIATIONS * deviation[rank], 0.0)
        count, cost = int((lost > 0).sum()), float(lost.sum() / length.sum())
        if rank in named or count > MOST_STEPS * len(work) or cost < MIN_LOST:
            continue
        yield _finding(account, rank, lost, own, cost)


def even_work(account: Account) -> pd.DataFrame:
    """Return what each rank (columns) would have worked in each step on microbatches like the mean one."""
    work = own_work(account)
    attribution = account.attribution
    if attribution is None or attribution.unequal_ns is None:
        return work
    unequal = attribution.unequal_ns
    if not attribution.work_is_stated:
        # What a device takes longer for all microbatches of a step looks like longer sequences.
        usual = float(np.quantile(unequal.abs(), USUAL_PART)) / DEVIATIONS_OF_PART
        unequal = unequal.where(unequal <= BEYOND_CHANCE * usual, 0.0)
    return work - unequal.reindex(index=work.index, columns=work.columns, fill_value=0.0)


def own_work(account: Account) -> pd.DataFrame:
    """Return what each rank (columns) worked in each step, without communication and known stalls."""
    by_step = account.ledger.by_step
    known = by_step[[*WAIT_CLASSES, *WIRE_CLASSES, UNSPLIT, *STALLS]].sum(axis=1)
    table = by_step.assign(own=by_step["step_ns"] - known)
    return table.pivot(index="step", columns="rank", values="own").fillna(0.0)


def _beyond_peers(
    account: Account, tables: tuple[pd.DataFrame, pd.DataFrame], rank: int
) -> pd.Series[float]:
    """Return by how much a rank exceeds its usual work by more than its peers do, ns by step.

    At most by how much it works longer than they do in the same step: what is usual for a peer that is slow
    in many steps hides that it, too, has more to do in some, such as a rollout before every third update.

    Args:
        account: The run.
        tables: Work, and its excess over the usual one, ns by step and rank.
        rank: Whose pauses are looked for.
    """
    work, excess = tables
    peers = account.peers_of(rank)
    if not peers:
        return excess[rank]
    beyond = excess[rank] - excess[peers].median(axis=1).clip(lower=0.0)
    return beyond.clip(upper=work[rank] - work[peers].median(axis=1))


def _named_otherwise(account: Account) -> set[int]:
    """Return the ranks that are reported as slow."""
    assert account.attribution is not None
    kinds = ("straggler_rank", "clock_throttle", "expert_imbalance", "other_slow_ranks")
    causes = [cause for kind in kinds for cause in account.causes(kind)]
    ranks = account.attribution.ranks
    suspected: list[int] = ranks.loc[ranks["suspect"], "rank"].tolist()
    return {*suspected, *(rank for cause in causes for rank in ranks_of(cause))}


def _finding(
    account: Account, rank: int, lost: pd.Series[float], own: pd.Series[float], cost: float
) -> Finding:
    steps = account.windows.steps.tolist()
    paused = lost[lost > 0]
    when = BadSteps(tuple(int(step) for step in paused.index), tuple(steps))
    where: Where = {"rank": rank, **when.where}
    longest = float(own[paused.index].max())
    return Finding(
        kind=FindingKind.HOST_STALL,
        severity=severity(cost),
        where=where,
        claim=message("pause.claim", rank=rank, when=when.message, cost=cost),
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            message("pause.longest", longest_ns=longest),
            message("pause.cost"),
            message("pause.otherwise_usual"),
        ),
        remedy=message("pause.remedy", rank=rank, when=when.message),
    )

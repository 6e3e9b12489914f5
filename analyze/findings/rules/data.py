"""Microbatches that differ in their work."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ...explain.run_account import Account
from ...tables.results import Cause, Finding
from ...wording.message import Message, message
from .bad_steps import BadSteps, all_steps
from .grading import MIN_COST, severity


def unequal_data(account: Account) -> Iterator[Finding]:
    """Work that the ranks of a replica share by microbatch, and other replicas do not have."""
    for cause in account.causes("sequence_imbalance"):
        if cause.worth_frac < MIN_COST:
            continue
        when = all_steps(account.windows)
        yield Finding(
            kind=FindingKind.SEQUENCE_IMBALANCE,
            severity=severity(cause.share_frac),
            where={**cause.where, **when.where},
            claim=message("sequence_imbalance.claim"),
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            removal_gain_interval=cause.removal_gain_interval,
            confidence=0.8,
            evidence=(*_why_data(account, when), *_ambiguity(cause)),
            remedy=message("sequence_imbalance.remedy"),
        )


def _why_data(account: Account, when: BadSteps) -> Iterator[Message]:
    """Say why it is the data, and by how much the longest replica exceeds the mean."""
    if account.attribution is None or not account.attribution.work_is_stated:
        yield message("sequence_imbalance.by_peers", when=when.message)
        return
    yield message("sequence_imbalance.by_lengths", when=when.message)
    squares = _squares_by_replica(account)
    if squares.shape[1] > 1:
        longest = float((squares.max(axis=1) / squares.mean(axis=1)).mean())
        yield message("sequence_imbalance.longest", ratio=longest)


def _squares_by_replica(account: Account) -> pd.DataFrame:
    """Return the sum of the squared sequence lengths, by step and replica."""
    layout = account.trace.layout
    assert layout is not None
    microbatches = account.windows.select(account.trace.frame("microbatch"))
    microbatches = microbatches.drop_duplicates(["rank", "step", "microbatch"], keep="last")
    of_rank = microbatches.groupby(["step", "rank"])["sum_sq"].sum().unstack()
    replica = [layout.coordinates(int(rank))["dp"] for rank in of_rank.columns]
    # Ranks of a replica tell the same, as far as they tell anything.
    return of_rank.T.groupby(replica).max().T.dropna()


def _ambiguity(cause: Cause) -> Iterator[Message]:
    """Say that a replica with more work and a slower one leave the same record."""
    if cause.removal_gain_interval is not None:
        least = max(cause.removal_gain_interval[0], 0.0)
        yield message("sequence_imbalance.ambiguous", least=least)
        yield message("sequence_imbalance.state_lengths")

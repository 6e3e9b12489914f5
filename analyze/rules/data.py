"""Microbatches that differ in their work."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..results import Cause, Finding
from .bad_steps import BadSteps, all_steps
from .grading import MIN_COST, severity


def unequal_data(account: Account) -> Iterator[Finding]:
    """Work that the ranks of a replica share by microbatch, and other replicas do not have."""
    for cause in account.causes("sequence_imbalance"):
        if max(cause.share_frac, cause.removal_gain_frac) < MIN_COST:
            continue
        when = all_steps(account.windows)
        yield Finding(
            kind=FindingKind.SEQUENCE_IMBALANCE,
            severity=severity(cause.share_frac),
            where={**cause.where, **when.where},
            claim="Microbatches differ in how much work they are, and the replicas wait for the "
            "longest",
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            removal_gain_interval=cause.removal_gain_interval,
            confidence=0.8,
            evidence=(*_told_by(account, when), *_untold(cause)),
            remedy="Balance the sum of squared sequence lengths over replicas and microbatches when "
            "packing, or sort by length within a batch",
        )


def _told_by(account: Account, when: BadSteps) -> Iterator[str]:
    """Say how it is known that microbatches differ, and by how much the longest replica exceeds the mean."""
    if account.attribution is None or not account.attribution.work_is_stated:
        yield (
            "what a rank works beyond its mean on a microbatch, the others of its replica (or "
            f"its own backward pass) work too, {when.words}: no rank is slow, the data is uneven"
        )
        return
    yield (
        "passes take as long as the lengths of their sequences ask for, which the training code "
        f"told, {when.words}: no rank is slow for it, the data is uneven"
    )
    squares = _squares_by_replica(account)
    if squares.shape[1] > 1:
        longest = float((squares.max(axis=1) / squares.mean(axis=1)).mean())
        yield (
            f"in the mean step the replica with the longest sequences has {longest:.2f} x the mean "
            "sum of their squared lengths"
        )


def _squares_by_replica(account: Account) -> pd.DataFrame:
    """Return the sum of the squared sequence lengths, by step and replica."""
    layout = account.trace.layout
    assert layout is not None
    told = account.windows.select(account.trace.frame("microbatch"))
    told = told.drop_duplicates(["rank", "step", "microbatch"], keep="last")
    of_rank = told.groupby(["step", "rank"])["sum_sq"].sum().unstack()
    replica = [layout.coordinates(int(rank))["dp"] for rank in of_rank.columns]
    # Ranks of a replica tell the same, as far as they tell anything.
    return of_rank.T.groupby(replica).max().T.dropna()


def _untold(cause: Cause) -> Iterator[str]:
    """Say what nothing tells apart: replicas that have more work on average, or are slower."""
    if cause.removal_gain_interval is not None:
        yield (
            "a replica that has more work on average and one whose ranks are slower leave the same "
            "record: if those that take longer are slower, evening out the data returns as little as "
            f"{max(cause.removal_gain_interval[0], 0.0):.1%} (tell the lengths of the sequences with "
            "meshscope.probe.sequences() to know which)"
        )

"""Microbatches that differ in their work."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..results import Cause, Finding
from .bad_steps import all_steps
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
            evidence=(
                "what a rank works beyond its mean on a microbatch, the others of its replica (or "
                f"its own backward pass) work too, {when.words}: no rank is slow, the data is uneven",
                *_untold(cause),
            ),
            remedy="Balance the sum of squared sequence lengths over replicas and microbatches when "
            "packing, or sort by length within a batch",
        )


def _untold(cause: Cause) -> Iterator[str]:
    """Say what nothing tells apart: replicas that have more work on average, or are slower."""
    if cause.removal_gain_interval is not None:
        yield (
            "a replica that has more work on average and one whose ranks are slower leave the same "
            "record: if those that take longer are slower, evening out the data returns as little as "
            f"{max(cause.removal_gain_interval[0], 0.0):.1%} (the tokens of the microbatches would tell)"
        )

"""Stages whose ranks are those of a host: nothing but the model says which of the two is slow."""

from __future__ import annotations

from collections.abc import Iterator

from ...explain.run_account import Account
from ...tables.classes import COMPUTE_CLASSES
from ...wording.message import Message, message

MIN_PART = 0.01
"""Share of the computing from which a class of it is compared."""


def stage_or_host(
    account: Account, stage: int, host: str, gain_frac: float | None = None
) -> Iterator[Message]:
    """Say why the stage and the host cannot be distinguished, and what each would show.

    Args:
        account: The run.
        stage: The heavy stage.
        host: Its host.
        gain_frac: What the repair of the host returns; None if unknown.
    """
    ranks = [rank for rank, own in account.stage.items() if own == stage]
    yield message("stage_or_host.same_ranks", stage=stage, host=host, ranks=ranks)
    by_step = account.ledger.by_step
    means = by_step.groupby(by_step["rank"].map(account.stage))[list(COMPUTE_CLASSES)].mean()
    own, others = means.loc[stage].to_dict(), means.drop(stage).median()
    large = others[others > MIN_PART * others.sum()]
    ratios = [
        message("stage_or_host.ratio", name=str(name), ratio=own[str(name)] / ns)
        for name, ns in large.items()
    ]
    if ratios:
        yield message("stage_or_host.ratios", ratios=ratios)
    if gain_frac is not None:
        yield message("stage_or_host.gain", host=host, gain=gain_frac)

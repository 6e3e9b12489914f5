"""Stages whose ranks are those of a host: nothing but the model says which of the two is slow."""

from __future__ import annotations

from collections.abc import Iterator

from ...explain.run_account import Account
from ...tables.classes import COMPUTE_CLASSES
from ...wording.message import Message, message

MIN_PART = 0.01
"""Share of the computing from which a class of it is compared."""


def host_of_stage(account: Account, stage: int) -> str | None:
    """Return the host that runs all captured ranks of a stage and no others; None if there is none.

    Where all ranks are on one host it is none either: the other stages show how fast it is.
    """
    trace = account.trace
    host_of = {rank: trace.clock_of(rank) for rank in account.stage if rank in trace.clocks}
    members = {rank for rank, own in account.stage.items() if own == stage}
    hosts = {host_of.get(rank, "") for rank in members}
    if len(hosts) != 1 or "" in hosts or len(set(host_of.values())) < 2:
        return None
    (host,) = hosts
    return host if {rank for rank, own in host_of.items() if own == host} == members else None


def stage_or_host(account: Account, stage: int, host: str) -> Iterator[Message]:
    """Say why the stage and the host cannot be distinguished, and what each would show."""
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

"""In which steps a rank is late that loses its time outside of its passes.

The detection looks at forward and backward passes. Of a rank that is held up between them, by a
blocking call or by code of the training loop, it sees nothing but noise, and the steps of that noise are not those
in which the rank is late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...explain.run_account import Account
from ...tables.classes import COMPUTE_CLASSES, UNSEPARATED
from ...wording.message import Message, message
from .bad_steps import BadSteps, bad_steps
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

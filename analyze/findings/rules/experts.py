"""Experts that the router prefers."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind

from ...explain.causes import expert_loads
from ...explain.run_account import Account
from ...tables.results import Cause, Finding, Where
from ...wording.message import message
from .bad_steps import all_steps
from .grading import MIN_COST, severity


def popular_experts(account: Account) -> Iterator[Finding]:
    """A rank that works longer because its experts get more tokens."""
    for cause in account.causes("expert_imbalance"):
        if cause.worth_frac >= MIN_COST:
            yield _finding(account, cause)


def _finding(account: Account, cause: Cause) -> Finding:
    rank, group = cause.where["rank"], cause.where["group_id"]
    loads = expert_loads(account.events.frame)
    own = loads[(loads["rank"] == rank) & (loads["group_id"].astype(str) == group)].iloc[0]
    where: Where = {**cause.where}
    if account.stage[rank] >= 0:
        where["stage"] = account.stage[rank]
    where |= all_steps(account.windows).where
    return Finding(
        kind=FindingKind.EXPERT_IMBALANCE,
        severity=severity(cause.worth_frac),
        where=where,
        claim=message("expert_imbalance.claim", rank=rank, load=float(own["load"])),
        cost_frac=cause.share_frac,
        removal_gain_frac=cause.removal_gain_frac,
        confidence=0.85,
        evidence=(
            message("expert_imbalance.measured", group=group),
            message("expert_imbalance.not_slow"),
        ),
        remedy=message("expert_imbalance.remedy"),
    )

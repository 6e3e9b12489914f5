"""Forward passes that are computed twice to save memory."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind

from ...account.memory.by_stage import peak_memory_frac
from ...explain.run_account import Account
from ...tables.results import Finding
from ...wording.message import message
from .bad_steps import all_steps, per_step
from .grading import severity

MIN_RECOMPUTE = 0.03
"""Share of the step from which recomputation is worth a finding."""


def recomputation(account: Account) -> Iterator[Finding]:
    """Time that activation checkpointing adds: it is in HFU and not in MFU."""
    cost = account.class_frac("recompute")
    if cost < MIN_RECOMPUTE:
        return
    when = all_steps(account.windows)
    full = peak_memory_frac(account.memory)
    yield Finding(
        kind=FindingKind.RECOMPUTE,
        severity=severity(cost),
        where=when.where,
        claim=message("recompute.claim", cost=cost),
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            message(
                "recompute.time",
                time_ns=cost * account.windows.mean_ns,
                each=per_step(account.windows),
            ),
            message("recompute.memory_unknown")
            if full is None
            else message("recompute.memory", share=full),
        ),
        remedy=message("recompute.remedy"),
    )

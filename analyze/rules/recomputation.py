"""Forward passes that are computed twice to save memory."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind

from ..account import Account
from ..memory import peak_memory_frac
from ..results import Finding
from .bad_steps import all_steps
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
        claim=f"Recomputing activations takes {cost:.1%} of the step",
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            f"recomputation: {cost * account.windows.mean_ns / 1e6:.2f} ms per step, {when.words}",
            "how full the memory is, is not known"
            if full is None
            else f"the fullest stage uses {full:.0%} of its memory",
        ),
        remedy="Recompute only what is cheap and large (selective checkpointing), as far as memory allows",
    )

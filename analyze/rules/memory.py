"""Memory: uneven over the stages, or nearly full."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..memory import peak_memory_frac, stage_imbalance
from ..results import Finding

MIN_RATIO = 1.3
NEARLY_FULL = 0.92


def memory(account: Account) -> Iterator[Finding]:
    """A stage that holds much more memory than the others, or is nearly full."""
    full = peak_memory_frac(account.memory)
    uneven = stage_imbalance(account.memory)
    if uneven is not None and uneven[1] >= MIN_RATIO:
        yield _memory_finding(FindingKind.MEMORY_IMBALANCE, uneven[0], uneven[1], full)
    if full is not None and full >= NEARLY_FULL:
        fullest = account.memory["peak_frac"].astype(float).to_numpy().argmax()
        stage = int(account.memory["stage"].to_numpy()[fullest])
        yield _memory_finding(FindingKind.MEMORY_HEADROOM, stage, None, full)


def _memory_finding(
    kind: FindingKind, stage: int, ratio: float | None, full: float | None
) -> Finding:
    claim = (
        f"Stage {stage} holds {ratio:.2f} x the memory of the median of the other stages"
        if ratio is not None
        else f"Stage {stage} uses {full:.0%} of its memory"
    )
    return Finding(
        kind=kind,
        severity=Severity.WARNING if ratio is None or (full or 0) > 0.8 else Severity.INFO,
        where={"stage": stage},
        claim=claim,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=() if full is None else (f"the fullest stage uses {full:.0%} of its capacity",),
        remedy="Shift layers, recompute activations on that stage, or split embedding and head",
    )

"""Which of some steps stands for all."""

from __future__ import annotations

from collections.abc import Sequence

from meshscope.analyze import Diagnosis


def typical_step(diagnosis: Diagnosis, steps: Sequence[int]) -> int:
    """Return which of some steps is typical: of those that are analysed the one of median length."""
    ledger = diagnosis.ledger[diagnosis.ledger["step"].isin(steps)]
    if ledger.empty:
        return steps[len(steps) // 2]
    length = ledger.groupby("step")["step_ns"].max().sort_index()
    distance = (length - length.median()).abs().to_numpy()
    return int(length.index.to_numpy()[distance.argmin()])

"""Findings about memory that is nearly full, and about who runs out first."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity

from ...explain.memory.expected import ExpectedMemory
from ...explain.memory.headroom import Headroom, Range, headroom
from ...tables.results import Finding
from ...wording.quantities import percent


def headroom_findings(
    by_stage: pd.DataFrame,
    expected: ExpectedMemory | None,
    fullest: int | None,
    full: float | None,
) -> Iterator[Finding]:
    """Yield the stage that is nearly full, or else the one that runs out first.

    Args:
        by_stage: A table of ``with_expected``.
        expected: What the formulas expect, None where that is not known.
        fullest: The stage that is nearly full, None where none is.
        full: Its share of the capacity.
    """
    room = None if expected is None else headroom(by_stage, expected)
    if fullest is None and room is None:
        return
    stage = fullest if fullest is not None else room.stage if room is not None else -1
    claim = (
        f"Stage {stage} uses {percent(full or 0.0, 0)} of its memory" if fullest is not None else ""
    )
    if room is not None and fullest is None:
        claim = (
            f"Stage {room.stage} runs out of memory first: microbatches of "
            f"{_interval(room.microbatch_size)} sequences fit"
        )
    yield Finding(
        kind=FindingKind.MEMORY_HEADROOM,
        severity=Severity.WARNING if fullest is not None else Severity.INFO,
        where={"stage": stage},
        claim=claim,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9 if fullest is not None else 0.8,
        evidence=tuple(_evidence(room, full)),
        remedy="Move layers, recompute activations on that stage, or split embedding and head"
        if fullest is not None
        else "Raise the size only up to the sure end of the interval, or move layers first",
    )


def _evidence(room: Headroom | None, full: float | None) -> Iterator[str]:
    if full is not None:
        yield f"the fullest stage uses {percent(full, 0)} of its capacity"
    if room is None:
        return
    size, length = room.microbatch_size, room.seq_len
    yield f"stage {room.stage} runs out first"
    yield f"largest microbatch: {_interval(size)} sequences (now {size.now})"
    yield f"longest sequence: {_interval(length)} tokens (now {length.now:,})"


def _interval(found: Range) -> str:
    """Return the largest size, from the one that surely fits to the one that may."""
    if found.surely == found.at_most:
        return f"{found.surely:,}"
    return f"{found.surely:,} to {found.at_most:,}"

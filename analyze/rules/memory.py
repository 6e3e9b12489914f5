"""Memory: uneven over the stages, or nearly full."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..capture.trace import Trace
from ..memory import CATEGORIES, fullest_samples, peak_memory_frac, stage_imbalance
from ..results import Finding

MIN_RATIO = 1.3
NEARLY_FULL = 0.92
_GIB = 1 << 30
_REMEDIES = {
    "parameters": "Shard the parameters over more ranks, or split the model",
    "gradients": "Shard the gradients, or free them as they are reduced",
    "optimizer": "Shard the state of the optimizer, or keep it in a smaller type",
    "activations": "Recompute activations, or make microbatches smaller",
    "other": "Look in the file for what allocates it",
}


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


def fullest_rank(trace: Trace) -> Iterator[Finding]:
    """The rank with the highest peak, and what its memory was for, where no capacity is known."""
    frame = trace.frame("memory")
    if frame.empty or frame["capacity_bytes"].notna().any():
        return
    highest = frame["peak_bytes"].fillna(frame["allocated_bytes"])
    peaks = highest.groupby(frame["rank"]).max().dropna().astype("int64")
    if peaks.empty:
        return
    rank = int(peaks.index.to_numpy(np.int64)[peaks.to_numpy(np.int64).argmax()])
    sample = fullest_samples(frame, "rank").loc[rank]
    sizes = {name: str(sample[f"{name}_bytes"]) for name in CATEGORIES}
    known = {name: int(size) for name, size in sizes.items() if size != "<NA>"}
    evidence = []
    if known:
        parts = sorted(known.items(), key=lambda pair: -pair[1])
        listed = ", ".join(f"{name} {size / _GIB:.2f} GiB" for name, size in parts)
        evidence.append(f"when most was allocated: {listed}")
    if len(peaks) > 1:
        others = float(np.median(peaks.drop(rank)))
        evidence.append(
            f"the median of the other {len(peaks) - 1} ranks is {others / _GIB:.2f} GiB"
        )
    evidence.append("what the device has is not in the capture, so how full it was is not known")
    largest = max(known, key=lambda name: known[name]) if known else "other"
    yield Finding(
        kind=FindingKind.MEMORY_HEADROOM,
        severity=Severity.INFO,
        where={"rank": rank},
        claim=f"Rank {rank} has the highest peak of memory, {peaks[rank] / _GIB:.2f} GiB",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=tuple(evidence),
        remedy=_REMEDIES[largest],
    )


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

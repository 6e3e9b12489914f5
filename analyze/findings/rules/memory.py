"""Memory: uneven over the stages, or nearly full, and who runs out first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.memory.by_stage import (
    CATEGORIES,
    fullest_samples,
    peak_memory_frac,
    stage_imbalance,
)
from ...explain.memory.expected import ExpectedMemory
from ...explain.memory.headroom import Headroom, Range, headroom
from ...explain.run_account import Account
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.quantities import percent
from ...wording.words import counted, is_missing
from .memory_stages import heavy_stages, uneven_stages


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


MIN_RATIO = 1.3
NEARLY_FULL = 0.92
_GIB = 1 << 30
_MOST_RANKS = 8
"""Ranks that have a finding each."""
_REMEDIES = {
    "parameters": "Shard the parameters over more ranks, or split the model",
    "gradients": "Shard the gradients, or free them as they are reduced",
    "optimizer": "Shard the state of the optimizer, or keep it in a smaller type",
    "activations": "Recompute activations, or make microbatches smaller",
    "other": "Look in the file for what allocates it",
}


def memory(account: Account) -> Iterator[Finding]:
    """Stages that hold more memory than the others, and the one that runs out first."""
    table = account.memory
    full = peak_memory_frac(table)
    ends = list(heavy_stages(table, account.trace, account.expectation.found))
    yield from ends
    uneven = None if ends else stage_imbalance(table)
    if uneven is not None and uneven[1] >= MIN_RATIO:
        yield uneven_stages(table, account.trace, uneven, full)
    fullest = None
    if full is not None and full >= NEARLY_FULL:
        fullest = int(
            table["stage"].iloc[int(table["peak_frac"].fillna(0).astype(float).to_numpy().argmax())]
        )
    yield from headroom_findings(table, account.expectation.found, fullest, full)


def out_of_memory(trace: Trace) -> Iterator[Finding]:
    """Ranks of which an allocation failed: how much was asked, what was free, and who asked."""
    frame = trace.frame("allocation_failure")
    if frame.empty:
        return
    for rank, own in islice(frame.groupby("rank"), _MOST_RANKS):
        last: Any = own.iloc[-1]
        capacity = int(last["reserved_bytes"]) + int(last["free_bytes"])
        unused = int(last["reserved_bytes"]) - int(last["allocated_bytes"])
        evidence = [
            f"asked for {_gib(last['size_bytes'])}; free on the device {_gib(last['free_bytes'])}",
            f"reserved {_gib(last['reserved_bytes'])}, of which {_gib(last['allocated_bytes'])} were in use and "
            f"{_gib(unused)} were not",
            f"capacity for this process: reserved and free together, {_gib(capacity)}",
        ]
        if last["place"]:
            evidence.append(f"asked by {last['place']}")
        remedy = "Make microbatches smaller, recompute activations, or shard more; look at the peak by category"
        if unused >= int(last["size_bytes"]):
            remedy = (
                "Memory is fragmented: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and use fewer "
                "different sizes"
            )
        yield Finding(
            kind=FindingKind.MEMORY_HEADROOM,
            severity=Severity.CRITICAL,
            where={"rank": int(str(rank))},
            claim=f"Rank {rank} ran out of memory: {counted(len(own), 'allocation')} failed",
            cost_frac=None,
            removal_gain_frac=None,
            confidence=1.0,
            evidence=tuple(evidence),
            remedy=remedy,
            cause="out_of_memory",
        )


def _gib(size: Any) -> str:
    return f"{int(size) / _GIB:.2f} GiB"


def fullest_rank(trace: Trace) -> Iterator[Finding]:
    """The rank with the highest peak, and what its memory was for, where no capacity is known."""
    frame = trace.frame("memory")
    if frame.empty:
        return
    highest = frame["peak_bytes"].fillna(frame["allocated_bytes"])
    peaks = highest.groupby(frame["rank"]).max().dropna().astype("int64")
    if peaks.empty:
        return
    rank = int(peaks.index.to_numpy(np.int64)[peaks.to_numpy(np.int64).argmax()])
    sample = fullest_samples(frame, "rank").loc[rank]
    sizes: dict[str, Any] = {name: sample[f"{name}_bytes"] for name in CATEGORIES}
    known = {name: int(size) for name, size in sizes.items() if not is_missing(size)}
    evidence = []
    if known:
        parts = sorted(known.items(), key=lambda pair: -pair[1])
        listed = ", ".join(f"{name} {size / _GIB:.2f} GiB" for name, size in parts if size)
        evidence.append(f"when most was allocated: {listed}")
        unknown = int(str(sample["allocated_bytes"])) - sum(known.values())
        if unknown > 0:
            evidence.append(f"{unknown / _GIB:.2f} GiB have no stack: what they are for is unknown")
    evidence += _reserved_words(sample)
    if len(peaks) > 1:
        others = float(np.median(peaks.drop(rank)))
        evidence.append(
            f"the median of the other {len(peaks) - 1} ranks is {others / _GIB:.2f} GiB"
        )
    if frame["capacity_bytes"].isna().all():
        evidence.append(
            "what the device has is not in the capture, so how full it was is not known"
        )
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


def _reserved_words(sample: Any) -> Iterator[str]:
    """Say what the allocator held beyond what was in use, where that is a tenth or more."""
    if is_missing(sample["reserved_bytes"]):
        return
    reserved, allocated = int(sample["reserved_bytes"]), int(sample["allocated_bytes"])
    if reserved - allocated >= 0.1 * reserved > 0:
        yield (
            f"reserved {_gib(reserved)}: {_gib(reserved - allocated)} ({percent((reserved - allocated) / reserved, 0)}) "
            "were held and not in use, by fragmentation or after a higher peak"
        )

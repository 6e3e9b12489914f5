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
from ...wording.message import Message, message
from ...wording.words import is_missing
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
    claim = message("memory_headroom.claim_full", stage=stage, share=full or 0.0)
    if room is not None and fullest is None:
        size = _interval(room.microbatch_size)
        claim = message("memory_headroom.claim_first", stage=room.stage, size=size)
    yield Finding(
        kind=FindingKind.MEMORY_HEADROOM,
        severity=Severity.WARNING if fullest is not None else Severity.INFO,
        where={"stage": stage},
        claim=claim,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9 if fullest is not None else 0.8,
        evidence=tuple(_evidence(room, full, is_full=fullest is not None)),
        remedy=message("memory_headroom.remedy_full")
        if fullest is not None
        else message("memory_headroom.remedy_first"),
    )


def _evidence(room: Headroom | None, full: float | None, *, is_full: bool) -> Iterator[Message]:
    if full is not None and not is_full:
        yield message("memory_headroom.fullest", share=full)
    if room is None:
        return
    size, length = room.microbatch_size, room.seq_len
    if is_full:
        yield message("memory_headroom.first", stage=room.stage)
    yield message("memory_headroom.microbatch", size=_interval(size), now=size.now)
    yield message("memory_headroom.sequence", size=_interval(length), now=length.now)


def _interval(found: Range) -> Message:
    """Return the largest size, from the one that surely fits to the one that may."""
    if found.surely == found.at_most:
        return message("memory_headroom.exactly", size=found.surely)
    return message("memory_headroom.between", low=found.surely, high=found.at_most)


MIN_RATIO = 1.3
NEARLY_FULL = 0.92
_MOST_RANKS = 8
"""Ranks that have a finding each."""
_REMEDIES = {
    "parameters": message("memory_headroom.remedy_parameters"),
    "gradients": message("memory_headroom.remedy_gradients"),
    "optimizer": message("memory_headroom.remedy_optimizer"),
    "activations": message("memory_headroom.remedy_activations"),
    "other": message("memory_headroom.remedy_other"),
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
            message("out_of_memory.asked", size=last["size_bytes"], free=last["free_bytes"]),
            _reserved(int(last["reserved_bytes"]), unused),
            message("out_of_memory.capacity", capacity=capacity),
        ]
        if last["place"]:
            evidence.append(message("out_of_memory.asked_by", place=last["place"]))
        remedy = message("out_of_memory.remedy")
        if unused >= int(last["size_bytes"]):
            remedy = message("out_of_memory.remedy_fragmented")
        yield Finding(
            kind=FindingKind.MEMORY_HEADROOM,
            severity=Severity.CRITICAL,
            where={"rank": int(str(rank))},
            claim=message("out_of_memory.claim", rank=int(str(rank)), failed=len(own)),
            cost_frac=None,
            removal_gain_frac=None,
            confidence=1.0,
            evidence=tuple(evidence),
            remedy=remedy,
            cause="out_of_memory",
        )


def _reserved(reserved: int, unused: int) -> Message:
    if unused <= 0:
        return message("out_of_memory.reserved_used", reserved=reserved)
    used = reserved - unused
    return message("out_of_memory.reserved", reserved=reserved, used=used, unused=unused)


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
    has_categories = not all(map(is_missing, sizes.values()))
    known = {name: int(size) for name, size in sizes.items() if not is_missing(size) and size}
    evidence = []
    if known:
        sizes_of = sorted(known.items(), key=lambda pair: -pair[1])
        parts = [message("memory.part", name=name, size=size) for name, size in sizes_of]
        evidence.append(message("memory_headroom.when_most", parts=parts))
    unknown = int(str(sample["allocated_bytes"])) - sum(known.values())
    if has_categories and unknown > 0:
        evidence.append(message("memory_headroom.no_stack", size=unknown))
    evidence += _not_in_use(sample)
    if len(peaks) > 1:
        others = float(np.median(peaks.drop(rank)))
        evidence.append(message("memory_headroom.median", ranks=len(peaks) - 1, size=others))
    if frame["capacity_bytes"].isna().all():
        evidence.append(message("memory_headroom.no_capacity"))
    largest = max(known, key=lambda name: known[name]) if known else "other"
    yield Finding(
        kind=FindingKind.MEMORY_HEADROOM,
        severity=Severity.INFO,
        where={"rank": rank},
        claim=message("memory_headroom.claim_highest", rank=rank, peak=int(peaks[rank])),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=tuple(evidence),
        remedy=_REMEDIES[largest],
    )


def _not_in_use(sample: Any) -> Iterator[Message]:
    """Yield what the allocator held beyond what was in use, where that is a tenth or more."""
    if is_missing(sample["reserved_bytes"]):
        return
    reserved, allocated = int(sample["reserved_bytes"]), int(sample["allocated_bytes"])
    unused = reserved - allocated
    if unused >= 0.1 * reserved > 0:
        yield message(
            "memory_headroom.not_in_use",
            reserved=reserved,
            unused=unused,
            share=unused / reserved,
        )

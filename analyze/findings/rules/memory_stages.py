"""Stages that stand out by their memory, and why, in the terms of a transformer's memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind, ScheduleKind, Severity

from ...account.bubble import microbatches_of, schedule_of
from ...account.memory.by_stage import StageExcess, stage_excess, used_bytes
from ...explain.memory.expected import ExpectedMemory
from ...formulas.planning.job import PlannedJob
from ...formulas.planning.memory import StageMemory, chunks_in_flight
from ...formulas.planning.states import stages_of_rank
from ...formulas.planning.terms import Category
from ...formulas.schedules import SCHEDULES, rank_of_last_stage
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.quantities import percent, percent_change
from ...wording.words import counted, is_missing

MIN_STAGE_RATIO = 1.2
"""From which a stage stands out: a larger excess than unequal layers make."""
MOST_LIKELY = 0.8
"""Of a device: above it unequal memory is a warning."""
_GIB = 1 << 30
_LEAST_BYTES = _GIB / 100
_LEAST_OF_EXCESS = 0.1
"""Least part of an excess that is a reason for it."""
_MOST_COUNTS = 16


def heavy_stages(
    by_stage: pd.DataFrame, trace: Trace, expected: ExpectedMemory | None
) -> Iterator[Finding]:
    """Yield a finding for every stage that stands out.

    Args:
        by_stage: A table of ``with_expected``.
        trace: The capture, for schedule and microbatches.
        expected: What the formulas expect, None where that is not known.
    """
    flight = in_flight(trace)
    for one in stage_excess(by_stage, flight):
        if one.ratio < MIN_STAGE_RATIO:
            continue
        reasons, remedy = _reasons(one, trace, expected)
        evidence = [
            f"{_gib(one.held_bytes)} held, {_gib(one.expected_bytes)} expected by the other stages",
            *reasons,
            *_falling(one, trace),
            *_beside_formulas(by_stage, one.stage),
        ]
        yield Finding(
            kind=FindingKind.MEMORY_IMBALANCE,
            severity=Severity.WARNING,
            where={"stage": one.stage},
            claim=f"Stage {one.stage} holds {one.ratio:.2f} x the memory that the other stages lead to expect",
            cost_frac=None,
            removal_gain_frac=None,
            confidence=0.8,
            evidence=tuple(evidence),
            remedy=remedy,
        )


def in_flight(trace: Trace) -> list[float] | None:
    """Return the microbatches in flight by pipeline rank, None where the order is not known."""
    layout, name, microbatches = trace.layout, schedule_of(trace), microbatches_of(trace)
    if layout is None or layout.pp < 2 or name is None or microbatches is None:
        return None
    kind = ScheduleKind(name)
    if kind not in SCHEDULES:
        return None
    try:
        return chunks_in_flight(kind, layout.pp, microbatches, layout.vpp)
    except ValueError:
        return None


def uneven_stages(
    by_stage: pd.DataFrame, trace: Trace, uneven: tuple[int, float], full: float | None
) -> Finding:
    """Return the finding about a stage that holds more than the median, though none stands out.

    Where memory falls with the microbatches in flight, the schedule is its cause.
    """
    stage, ratio = uneven
    evidence: tuple[str, ...] = (
        () if full is None else (f"the fullest stage uses {percent(full, 0)} of its capacity",)
    )
    remedy = "Move layers to other stages, recompute activations there, or shard embedding and head"
    cause: str | None = None
    lines = stage_excess(by_stage, in_flight(trace))
    falls = list(_falling(lines[0], trace)) if lines else list(_two_stages(by_stage, trace))
    if falls:
        evidence = (*evidence, *falls)
        remedy = "Recompute activations on the early stages, or use a schedule with fewer in flight"
        cause = "schedule"
    return Finding(
        kind=FindingKind.MEMORY_IMBALANCE,
        severity=Severity.WARNING if (full or 0) > MOST_LIKELY else Severity.INFO,
        where={"stage": stage},
        claim=f"Stage {stage} holds {ratio:.2f} x the memory of the median of the other stages",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=evidence,
        remedy=remedy,
        cause=cause,
    )


def _falling(one: StageExcess, trace: Trace) -> Iterator[str]:
    """Say that memory falls over the stages with the microbatches in flight."""
    if one.bytes_per_stage >= -_LEAST_BYTES:
        return
    held, name = in_flight(trace), schedule_of(trace)
    fall = f"memory falls by {_gib(-one.bytes_per_stage)} a stage"
    if held is None or name is None:
        yield f"{fall}, as in 1F1B, which holds the activations of p - stage microbatches"
        return
    counts = ", ".join(f"{count:g}" for count in held[:_MOST_COUNTS])
    rule = (
        "p - stage microbatches"
        if name == ScheduleKind.ONE_F_ONE_B
        else "its microbatches in flight"
    )
    yield f"{fall}: {name} holds the activations of {rule}"
    yield f"in flight by stage: {counts}{' …' if len(held) > _MOST_COUNTS else ''}"


def _two_stages(by_stage: pd.DataFrame, trace: Trace) -> Iterator[str]:
    """Say that microbatches in flight can explain the difference of two stages."""
    held, flight = used_bytes(by_stage).to_numpy(np.float64, na_value=np.nan), in_flight(trace)
    if len(held) != 2 or flight is None or len(flight) != 2 or flight[1] >= flight[0]:
        return
    if held[1] < held[0] <= held[1] * flight[0] / flight[1]:
        yield (
            f"{flight[0]:g} and {flight[1]:g} microbatches in flight can explain it; "
            "two stages do not separate them from the embedding"
        )


def _reasons(
    one: StageExcess, trace: Trace, expected: ExpectedMemory | None
) -> tuple[list[str], str]:
    """Return why a stage holds more, by the formulas, else by categories and place; and the remedy."""
    over = one.held_bytes - one.expected_bytes
    parts = sorted(one.by_category.items(), key=lambda pair: -pair[1])
    measured = [f"{name} {_gib(size)}" for name, size in parts if size >= _LEAST_BYTES]
    said = [f"more than expected: {', '.join(measured)}"] if measured else []
    holds = _ends_held(one.stage, trace)
    if expected is not None and one.stage < len(expected.stages):
        terms = [
            (name, size)
            for name, size in _special_terms(expected, one.stage)
            if size >= max(_LEAST_BYTES, _LEAST_OF_EXCESS * over)
        ]
        if terms:
            listed = ", ".join(f"{name} {_gib(size)}" for name, size in terms)
            said.append(f"by the formulas this stage alone has: {listed}")
        return said, _remedy([name for name, _ in terms])
    if holds:
        said.append(f"this stage has {' and '.join(holds)}")
    logits = one.by_category.get("activations", 0.0)
    return said, _remedy([*holds, *(["logits"] if logits > over / 2 else [])])


def _ends_held(stage: int, trace: Trace) -> list[str]:
    """Return the parts of the model's ends on a stage, by its place."""
    if trace.layout is None:
        return []
    last = rank_of_last_stage(schedule_of(trace) or "", trace.layout.pp)
    found = ["the embedding"] if stage == 0 else []
    return [*found, "the output head, the logits and the loss"] if stage == last else found


def _special_terms(expected: ExpectedMemory, stage: int) -> Iterator[tuple[str, float]]:
    """Yield what a stage has beside its layers, by the formulas."""
    own, job = expected.stages[stage], expected.job
    states = sum(
        own.total(kind) for kind in (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER)
    )
    share = own.parameters.vocabulary / own.parameters.total if own.parameters.total else 0.0
    ends = _vocabulary_name(job, stage)
    if ends:
        yield f"{ends} (parameters, gradients and optimizer)", states * share
    yield f"logits of a vocabulary of {job.model.vocab_size:,}", own.total(Category.LOGITS)
    flights = sorted(one.in_flight for one in expected.stages)
    yield from _more_layers(expected, own, flights[len(flights) // 2])


def _vocabulary_name(job: PlannedJob, stage: int) -> str:
    stages = stages_of_rank(job, stage)
    names = ["embedding"] if 0 in stages else []
    names += ["output head"] if job.stages - 1 in stages else []
    return " and ".join(names)


def _more_layers(
    expected: ExpectedMemory, own: StageMemory, usual_flight: float
) -> Iterator[tuple[str, float]]:
    """Yield what more layers than usual, or more microbatches in flight than usual, hold."""
    counts = sorted(one.layers for one in expected.stages)
    usual = counts[len(counts) // 2]
    activations = own.total(Category.ACTIVATIONS)
    if own.layers > usual:
        each = (own.allocated_bytes - own.total(Category.LOGITS)) / own.layers
        yield f"{counted(own.layers - usual, 'layer')} more", each * (own.layers - usual)
    if own.in_flight > usual_flight:
        more = own.in_flight - usual_flight
        yield f"{more:g} more microbatches in flight", activations * more / own.in_flight


def _remedy(reasons: list[str]) -> str:
    found = []
    if any("logits" in reason for reason in reasons):
        found.append("fuse the cross-entropy or split the vocabulary over ranks")
    if any("in flight" in reason for reason in reasons):
        found.append("recompute activations on this stage")
    text = "Give this stage fewer layers (meshscope balance)"
    return f"{text}, or {' or '.join(found)}" if found else f"{text}, or shard its states further"


def _beside_formulas(by_stage: pd.DataFrame, stage: int) -> Iterator[str]:
    """Say what the formulas expect of the stage as a whole."""
    rows = by_stage[by_stage["stage"] == stage]
    if "expected_bytes" not in rows or rows.empty or is_missing(rows["expected_bytes"].iloc[0]):
        return
    expected, off = (float(rows[f"{name}_bytes"].iloc[0]) for name in ("expected", "difference"))
    yield f"the formulas expect {_gib(expected)} here: measured {percent_change(off / expected)}"


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f} GiB"

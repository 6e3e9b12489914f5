"""Stages that stand out by their memory, and why, in the terms of a transformer's memory."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import ConfigError
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
from ...wording.message import Message, message
from ...wording.words import is_missing

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
            message("memory_imbalance.held", held=one.held_bytes, expected=one.expected_bytes),
            *reasons,
            *_falling(one, trace),
            *_beside_formulas(by_stage, one.stage),
        ]
        yield Finding(
            kind=FindingKind.MEMORY_IMBALANCE,
            severity=Severity.WARNING,
            where={"stage": one.stage},
            claim=message("memory_imbalance.claim", stage=one.stage, ratio=one.ratio),
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
    except (
        ConfigError,
        ValueError,
    ):  # An order that does not fit the chunks: torch interleaves zb-h1.
        return None


def uneven_stages(
    by_stage: pd.DataFrame, trace: Trace, uneven: tuple[int, float], full: float | None
) -> Finding:
    """Return the finding about a stage that holds more than the median, though none stands out.

    Where memory falls with the microbatches in flight, the schedule is its cause.
    """
    stage, ratio = uneven
    evidence = () if full is None else (message("memory_headroom.fullest", share=full),)
    remedy = message("memory_imbalance.remedy")
    cause: str | None = None
    lines = stage_excess(by_stage, in_flight(trace))
    falls = list(_falling(lines[0], trace)) if lines else list(_two_stages(by_stage, trace))
    if falls:
        evidence = (*evidence, *falls)
        remedy = message("memory_imbalance.remedy_schedule")
        cause = "schedule"
    return Finding(
        kind=FindingKind.MEMORY_IMBALANCE,
        severity=Severity.WARNING if (full or 0) > MOST_LIKELY else Severity.INFO,
        where={"stage": stage},
        claim=message("memory_imbalance.claim_median", stage=stage, ratio=ratio),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=evidence,
        remedy=remedy,
        cause=cause,
    )


def _falling(one: StageExcess, trace: Trace) -> Iterator[Message]:
    """Say that memory falls over the stages with the microbatches in flight."""
    fall = -one.bytes_per_stage
    if fall <= _LEAST_BYTES:
        return
    held, name = in_flight(trace), schedule_of(trace)
    if held is None or name is None:
        yield message("memory_imbalance.falls", fall=fall)
        return
    if name == ScheduleKind.ONE_F_ONE_B:
        yield message("memory_imbalance.falls_1f1b", fall=fall, schedule=name)
    else:
        yield message("memory_imbalance.falls_in_flight", fall=fall, schedule=name)
    counts = [f"{count:g}" for count in held]
    if len(counts) > _MOST_COUNTS:
        shown = counts[:_MOST_COUNTS]
        yield message("memory_imbalance.first_in_flight", stages=len(shown), counts=shown)
    else:
        yield message("memory_imbalance.in_flight", counts=counts)


def _two_stages(by_stage: pd.DataFrame, trace: Trace) -> Iterator[Message]:
    """Say that microbatches in flight can explain the difference of two stages."""
    held, flight = used_bytes(by_stage).to_numpy(np.float64, na_value=np.nan), in_flight(trace)
    if len(held) != 2 or flight is None or len(flight) != 2 or flight[1] >= flight[0]:
        return
    if held[1] < held[0] <= held[1] * flight[0] / flight[1]:
        yield message("memory_imbalance.two_stages", first=flight[0], last=flight[1])


def _reasons(
    one: StageExcess, trace: Trace, expected: ExpectedMemory | None
) -> tuple[list[Message], Message]:
    """Return why a stage holds more, by the formulas, else by categories and place; and the remedy."""
    over = one.held_bytes - one.expected_bytes
    sizes = sorted(one.by_category.items(), key=lambda pair: -pair[1])
    parts = [
        message("memory.part", name=name, size=size) for name, size in sizes if size >= _LEAST_BYTES
    ]
    said = [message("memory_imbalance.more", parts=parts)] if parts else []
    if expected is not None and one.stage < len(expected.stages):
        least = max(_LEAST_BYTES, _LEAST_OF_EXCESS * over)
        terms = [term for term in _special_terms(expected, one.stage) if term.size >= least]
        if terms:
            own = [message("memory.part", name=term.name, size=term.size) for term in terms]
            said.append(message("memory_imbalance.terms", parts=own))
        return said, _remedy({term.way for term in terms})
    ends, has_logits = _ends_held(one.stage, trace)
    if ends:
        said.append(message("memory_imbalance.has", parts=ends))
    has_logits = has_logits or one.by_category.get("activations", 0.0) > over / 2
    return said, _remedy({_Way.LOGITS} if has_logits else set())


def _ends_held(stage: int, trace: Trace) -> tuple[list[Message], bool]:
    """Return the parts of the model's ends on a stage, by its place, and whether the logits are there."""
    if trace.layout is None:
        return [], False
    is_last = stage == rank_of_last_stage(schedule_of(trace) or "", trace.layout.pp)
    found = [message("memory_imbalance.embedding")] if stage == 0 else []
    return [*found, message("memory_imbalance.output")] if is_last else found, is_last


class _Way(Enum):
    """What a term of memory is cut by."""

    LAYERS = "layers"
    LOGITS = "logits"
    IN_FLIGHT = "in_flight"


class _Term(NamedTuple):
    """What one stage has beside the layers of all."""

    name: Message
    size: float
    way: _Way = _Way.LAYERS


def _special_terms(expected: ExpectedMemory, stage: int) -> Iterator[_Term]:
    """Yield what a stage has beside its layers, by the formulas."""
    own, job = expected.stages[stage], expected.job
    states = sum(
        own.total(kind) for kind in (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER)
    )
    share = own.parameters.vocabulary / own.parameters.total if own.parameters.total else 0.0
    ends = _ends_of_model(job, stage)
    if ends:
        yield _Term(message("memory_imbalance.states", ends=ends), states * share)
    logits = message("memory_imbalance.logits", vocabulary=job.model.vocab_size)
    yield _Term(logits, own.total(Category.LOGITS), _Way.LOGITS)
    flights = sorted(one.in_flight for one in expected.stages)
    yield from _more_layers(expected, own, flights[len(flights) // 2])


def _ends_of_model(job: PlannedJob, stage: int) -> list[Message]:
    stages = stages_of_rank(job, stage)
    found = [message("memory_imbalance.embedding_states")] if 0 in stages else []
    is_last = job.stages - 1 in stages
    return [*found, message("memory_imbalance.output_states")] if is_last else found


def _more_layers(
    expected: ExpectedMemory, own: StageMemory, usual_flight: float
) -> Iterator[_Term]:
    """Yield what more layers than usual, or more microbatches in flight than usual, hold."""
    counts = sorted(one.layers for one in expected.stages)
    usual = counts[len(counts) // 2]
    activations = own.total(Category.ACTIVATIONS)
    if own.layers > usual:
        each = (own.allocated_bytes - own.total(Category.LOGITS)) / own.layers
        more_layers = own.layers - usual
        name = message("memory_imbalance.more_layers", layers=more_layers)
        yield _Term(name, each * more_layers)
    if own.in_flight > usual_flight:
        more = own.in_flight - usual_flight
        name = message("memory_imbalance.more_in_part", more=more)
        if float(more).is_integer():
            name = message("memory_imbalance.more_in_flight", more=int(more))
        yield _Term(name, activations * more / own.in_flight, _Way.IN_FLIGHT)


def _remedy(ways: set[_Way]) -> Message:
    found = [message("memory_imbalance.way_logits")] if _Way.LOGITS in ways else []
    if _Way.IN_FLIGHT in ways:
        found.append(message("memory_imbalance.way_recompute"))
    return message(
        "memory_imbalance.remedy_layers", ways=found or [message("memory_imbalance.way_shard")]
    )


def _beside_formulas(by_stage: pd.DataFrame, stage: int) -> Iterator[Message]:
    """Say what the formulas expect of the stage as a whole."""
    rows = by_stage[by_stage["stage"] == stage]
    if "expected_bytes" not in rows or rows.empty or is_missing(rows["expected_bytes"].iloc[0]):
        return
    expected, off = (float(rows[f"{name}_bytes"].iloc[0]) for name in ("expected", "difference"))
    yield message("memory_imbalance.formulas", expected=expected, change=off / expected)

"""The job of a run as the formulas need it: what is recorded, and what the traffic shows.

A capture has model, mesh and batch. It does not have the stage of ZeRO, sequence parallelism,
recomputation and the types of its tensors. These decide which operations there are, and are read
from those. Recomputation is taken where the counts match it exactly, and else not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

import msgspec

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.terms import Axis, ScheduleKind, SpanKind

from ...formulas.flops import known_model
from ...formulas.planning.job import PlannedJob, Recompute
from ...formulas.schedules import SCHEDULES
from ...tables.trace import Trace


class Unknown(StrEnum):
    """Why nothing can be expected of a run."""

    LAYOUT = "layout"
    MODEL = "model"
    BATCH = "batch"
    SETTINGS = "settings"
    """The recorded settings contradict each other."""
    RECORDS = "records"
    """No analysed step holds single operations."""


class KnownJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job, or why it is unknown."""

    job: PlannedJob | None
    unknown: Unknown | None = None


def job_of_run(trace: Trace, kinds: Mapping[tuple[str, str], float]) -> KnownJob:
    """Return the job of a run.

    Args:
        trace: The capture.
        kinds: Bytes by axis and kind, which show how tensors are shared.
    """
    if trace.layout is None:
        return KnownJob(job=None, unknown=Unknown.LAYOUT)
    model = known_model(trace.run).model
    if not isinstance(model, ModelDescription) or model.counted:
        return KnownJob(job=None, unknown=Unknown.MODEL)
    count, tokens = trace.run.get("microbatches"), trace.run.get("tokens_per_step")
    if not isinstance(count, int) or not isinstance(tokens, int) or min(count, tokens) < 1:
        return KnownJob(job=None, unknown=Unknown.BATCH)
    each, rest = divmod(tokens, trace.layout.dp * count)
    if rest:
        return KnownJob(job=None, unknown=Unknown.BATCH)
    try:
        found = PlannedJob(
            # Volumes follow from the tokens of a microbatch alone: they are one sequence here.
            model=replace(model, seq_len=each),
            layout=trace.layout,
            schedule=_schedule(trace.run, trace.layout),
            microbatches=count,
            layers_per_stage=_split(model.num_layers, trace.layout),
            zero=1 if _shares(kinds) else 0,
            sequence_parallel=kinds.get((Axis.TP.value, "reduce_scatter"), 0.0)
            > kinds.get((Axis.TP.value, "all_reduce"), 0.0),
            recompute=Recompute.FULL if _computes_again(trace) else Recompute.NONE,
        )
    except ConfigError:
        return KnownJob(job=None, unknown=Unknown.SETTINGS)
    return KnownJob(job=found)


def _shares(kinds: Mapping[tuple[str, str], float]) -> bool:
    """Return whether replicas share gradients or weights: they scatter or gather more than they sum."""
    moved = [kinds.get((Axis.DP.value, kind), 0.0) for kind in ("reduce_scatter", "all_gather")]
    return sum(moved) > kinds.get((Axis.DP.value, "all_reduce"), 0.0)


def _computes_again(trace: Trace) -> bool:
    span = trace.frame("span")
    return bool((span["kind"].astype(str) == SpanKind.RECOMPUTE.value).any())


def _schedule(run: Mapping[str, Any], layout: ParallelLayout) -> ScheduleKind:
    """Return the schedule by which stages lie on ranks."""
    stated = run.get("schedule")
    for kind, schedule in SCHEDULES.items():
        if kind == stated and schedule.fits_chunks(layout.vpp) and layout.pp > 1:
            return kind
    return ScheduleKind.INTERLEAVED if layout.vpp > 1 else ScheduleKind.ONE_F_ONE_B


def _split(layers: int, layout: ParallelLayout) -> tuple[int, ...]:
    """Return layers by stage, as equal as can be: sums over a pipeline do not depend on it."""
    stages = layout.pp * layout.vpp
    low, more = divmod(layers, stages)
    return tuple(low + (stage < more) for stage in range(stages))

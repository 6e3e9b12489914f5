"""Pipeline visualiser dumps: one JSON file per pipeline rank, as one Trace.

A file maps iterations to lists of starts and ends of the forward and backward
passes in milliseconds, the length of the iteration (``total``) and its peak of
memory. Every rank counts from an origin of its own, so what one rank did is never
placed in time beside another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import MEMORY, RUN, SPAN, STEP, TABLES
from meshscope.probe.schema.terms import CaptureLevel, MemoryPhase, SpanKind

from ...wording.limits import Limit
from ...wording.message import message
from ..files import InputFile
from .files import LONGEST_ITERATION_MS, Iteration, Mesh, StageFile, read_mesh, read_stage_files

_NS_PER_MS = 1e6
_BYTES_PER_GB = 1 << 30
"""The dumps hold whole MiB divided by 1024."""
WARM_UP_FACTOR = 1.5
"""The first iterations are left out while they last longer than this times the median."""


def import_pipeline_visualiser(
    path: Path, files: Sequence[InputFile], configs: Sequence[InputFile], *, limits: Iterable[Limit]
) -> Trace:
    """Read the files of one pipeline.

    Args:
        path: What the user named; it becomes the name of the run.
        files: The dumps; each names its pipeline rank in its file name.
        configs: Files with the sizes of the job; the first that can be read is used.
        limits: What is already known to be missing.

    Raises:
        TraceFormatError: Two files claim one pipeline rank, or no file can be read.
    """
    stages, damaged = read_stage_files(path, files)
    notes: list[Limit] = [*limits, *damaged]
    mesh = read_mesh(stages, configs or _config_beside(files[0]), notes)
    spans = _spans(stages, mesh, notes)
    steps = _steps(stages, spans, notes)
    notes.append(message("unknown.order_of_ranks"))
    tables = {name: spec.empty() for name, spec in TABLES.items()} | {
        "step": _step_table(stages, mesh, steps),
        "span": SPAN.conform(pa.Table.from_pandas(spans, preserve_index=False)),
        "memory": _memory_table(stages, mesh),
    }
    return Trace(
        path=path,
        run=_run(path, mesh),
        layout=mesh.layout,
        ranks=tuple(mesh.rank_of(stage.stage) for stage in stages),
        tables=tables,
        limits=tuple(notes),
        origin="pipeline_visualiser",
        per_step_clock=True,
    )


def _config_beside(file: InputFile) -> list[InputFile]:
    """Return the config in the folder of a dump that was named alone."""
    beside = file.path.with_name("config.json")
    return [InputFile(str(beside), beside)] if beside.is_file() else []


def _spans(stages: Sequence[StageFile], mesh: Mesh, notes: list[Limit]) -> pd.DataFrame:
    """Return one row per pass; passes without two ends in order are counted and left out."""
    rows: list[dict[str, object]] = []
    lost = 0
    for stage in stages:
        for number, iteration in stage.iterations.items():
            for kind, passes in _passes(iteration):
                place = {"rank": mesh.rank_of(stage.stage), "step": number, "kind": kind.value}
                before = len(rows)
                rows += (place | one for one in _rows(passes, stage.stage, mesh))
                lost += max(len(passes.start), len(passes.end)) - (len(rows) - before)
    if lost:
        notes.append(message("missing.passes", count=lost))
    if not rows:
        raise TraceFormatError(message("refused.no_pass"), where=stages[0].label)
    if any(row["microbatch"] == -1 for row in rows):
        notes.append(message("unknown.microbatches_of_chunks"))
    return pd.DataFrame(rows)


_PARTS = ("start", "end", "minibatch", "chunk")


@dataclass(frozen=True, slots=True)
class _Passes:
    """The lists of one kind of pass, in the order of ``_PARTS``."""

    start: list[float]
    end: list[float]
    microbatch: list[int] | None
    chunk: list[int] | None


def _passes(iteration: Iteration) -> Iterable[tuple[SpanKind, _Passes]]:
    """Yield the passes by kind; a schedule that splits the backward pass records it apart."""
    is_split = bool(iteration.wgrad_start)
    backward = SpanKind.BACKWARD_INPUT if is_split else SpanKind.BACKWARD
    for kind, name in (
        (SpanKind.FORWARD, "fwd"),
        (backward, "bwd"),
        (SpanKind.BACKWARD_WEIGHT, "wgrad"),
    ):
        parts = (getattr(iteration, f"{name}_{part}") for part in _PARTS)
        yield kind, _Passes(*parts)


def _rows(passes: _Passes, stage: int, mesh: Mesh) -> Iterable[dict[str, object]]:
    """Yield the spans of one list.

    With one chunk per rank the k-th pass of a direction belongs to microbatch k.
    """
    single = mesh.vpp == 1
    for i, (start, end) in enumerate(zip(passes.start, passes.end, strict=False)):
        if end < start or end - start > LONGEST_ITERATION_MS:
            continue
        chunk = _at(passes.chunk, i, 0 if single else -1)
        start_ns, end_ns = round(start * _NS_PER_MS), round(end * _NS_PER_MS)
        yield {
            "stage": stage + chunk * mesh.pp if chunk >= 0 else -1,
            "chunk": chunk,
            "microbatch": _at(passes.microbatch, i, i if single else -1),
            "start_ns": start_ns,
            "dur_ns": end_ns - start_ns,
        }


def _at(values: list[int] | None, i: int, default: int) -> int:
    return values[i] if values and i < len(values) else default


def _steps(stages: Sequence[StageFile], spans: pd.DataFrame, notes: list[Limit]) -> dict[int, int]:
    """Return how long each step lasts, ns: the ``total`` of pipeline rank 0.

    ``total`` ends with the last pass of the own rank, and the first rank is the last
    to end. No pass is cut off: the iteration lasts until the last one has ended.
    """
    first = stages[0]
    if first.stage != 0:
        notes.append(message("assumed.steps_of_stage", stage=first.stage))
    last_end = (spans["start_ns"] + spans["dur_ns"]).groupby(spans["step"]).max()
    dur_ns = {
        number: max(round(_total(one) * _NS_PER_MS), int(last_end.get(number, 0)))
        for number, one in sorted(first.iterations.items())
    }
    absurd = sum(_total(one) < one.total for one in first.iterations.values())
    if absurd:
        notes.append(message("assumed.iterations_of_passes", count=absurd))
    median = float(np.median(list(dur_ns.values())))
    slow: list[int] = []
    for number, dur in dur_ns.items():
        if dur <= WARM_UP_FACTOR * median:
            break
        slow.append(number)
    if slow:
        notes.append(message("scope.slow_iterations", factor=WARM_UP_FACTOR, iterations=slow))
    return {number: dur for number, dur in dur_ns.items() if number not in slow}


def _total(iteration: Iteration) -> float:
    """Return how long an iteration says that it lasted, ms; 0 where that cannot be."""
    return iteration.total if iteration.total <= LONGEST_ITERATION_MS else 0.0


def _step_table(stages: Sequence[StageFile], mesh: Mesh, steps: dict[int, int]) -> pa.Table:
    rows = [
        {"rank": mesh.rank_of(stage.stage), "step": number, "start_ns": 0, "dur_ns": dur}
        for stage in stages
        for number, dur in steps.items()
        if number in stage.iterations
    ]
    frame = pd.DataFrame(rows, columns=["rank", "step", "start_ns", "dur_ns"])
    return STEP.conform(pa.Table.from_pandas(frame, preserve_index=False))


def _memory_table(stages: Sequence[StageFile], mesh: Mesh) -> pa.Table:
    rows = [
        {
            "rank": mesh.rank_of(stage.stage),
            "step": number,
            "phase": MemoryPhase.OTHER.value,
            "stage": stage.stage,
            "time_ns": round(_total(one) * _NS_PER_MS),
            "peak_bytes": round(one.memory * _BYTES_PER_GB),
        }
        for stage in stages
        for number, one in stage.iterations.items()
        if one.memory is not None
    ]
    if not rows:
        return MEMORY.empty()
    return MEMORY.conform(pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False))


def _run(path: Path, mesh: Mesh) -> dict[str, object]:
    known = mesh.layout.to_json() | {
        "run_id": path.stem if path.is_file() else path.name,
        "world_size": mesh.layout.world_size,
        "schedule": mesh.schedule,
        "microbatches": mesh.microbatches,
        "capture_level": CaptureLevel.STAGES.value,
    }
    return {name: known.get(name) for name in RUN.column_names()}

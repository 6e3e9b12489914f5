"""NDTimeline-style jobs: one parquet row per operation of a worker in a step.

A worker stands for one (data-parallel rank, pipeline stage); ranks that share its
tensor-parallel group are not recorded. Times are float seconds from an origin
that all workers share within a step and that differs between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import RUN, SPAN, STEP, TABLES
from meshscope.probe.schema.terms import CaptureLevel, SpanKind

from ...wording.limits import Limit
from ...wording.message import message
from ..files import InputFile
from .communication import COMMUNICATION, communication_tables
from .job import Job, read_job
from .ops import read_ops

SPANS = {
    "forward-compute": SpanKind.FORWARD,
    "backward-compute": SpanKind.BACKWARD,
    "optimizer": SpanKind.OPTIMIZER,
    "gc": SpanKind.GC,
}
"""Operations that are compute or host time of one worker."""


def import_ndtimeline(
    path: Path, files: Sequence[InputFile], *, limits: Sequence[Limit] = ()
) -> Trace:
    """Read one job; its ``meta-*.yaml`` lies beside the parquet file and may be absent.

    Raises:
        TraceFormatError: There are several jobs, or the file holds no usable row.
    """
    if len(files) > 1:
        raise TraceFormatError(
            message("refused.holds_jobs", jobs=len(files), files=[file.name for file in files[:4]]),
            where=str(path),
            remedy=message("advice.one_parquet_file"),
        )
    parquet = files[0].path
    ops, said = read_ops(parquet, (*SPANS, *COMMUNICATION))
    workers = ops[["rank", "dp_rank", "stage"]].drop_duplicates().sort_values("rank")
    job = read_job(parquet, workers, chunks=int(ops["mc"].max()) + 1, limits=said)
    tables = {name: spec.empty() for name, spec in TABLES.items()}
    tables |= {"step": _steps(ops), "span": _spans(ops)}
    tables |= communication_tables(ops, workers, job, said)
    return Trace(
        path=path,
        run=_run(path, ops, job),
        layout=job.layout,
        ranks=tuple(workers["rank"].tolist()),
        tables=tables,
        limits=(*limits, *said),
        origin="ndtimeline",
        per_step_clock=True,
    )


def _steps(ops: pd.DataFrame) -> pa.Table:
    """Return one row per worker and step; all workers of a step share its window."""
    window = ops.groupby("step").agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"))
    rows = ops[["rank", "step"]].drop_duplicates().join(window, on="step")
    rows["dur_ns"] = rows["end_ns"] - rows["start_ns"]
    rows = rows.sort_values(["rank", "step"])
    return STEP.conform(pa.Table.from_pandas(rows, preserve_index=False))


def _spans(ops: pd.DataFrame) -> pa.Table:
    rows = ops[ops["optype"].isin(SPANS)].rename(columns={"mc": "chunk", "mb_id": "microbatch"})
    rows["kind"] = rows["optype"].map({op: kind.value for op, kind in SPANS.items()})
    return SPAN.conform(pa.Table.from_pandas(rows, preserve_index=False))


def _run(path: Path, ops: pd.DataFrame, job: Job) -> dict[str, object]:
    forward = ops[ops["optype"] == "forward-compute"]
    microbatches = forward.groupby(["step", "rank"])["mb_id"].nunique()
    sizes = job.layout.to_json() if job.layout else {}
    known = sizes | {
        "run_id": path.stem if path.is_file() else path.name,
        "world_size": job.world_size,
        "microbatches": int(microbatches.max()) if len(microbatches) else None,
        "capture_level": CaptureLevel.COLLECTIVES.value,
    }
    return {name: known.get(name) for name in RUN.column_names()}

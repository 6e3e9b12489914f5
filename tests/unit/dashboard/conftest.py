"""A small job in a real input format, for the tests of what the dashboard serves."""

from pathlib import Path

import pandas as pd
import pytest

from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault, write_run
from meshscope.dashboard import create_app
from meshscope.dashboard.runs.store import RunStore
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

STAGES, REPLICAS, STEPS = 1, 4, 3
SLOW_RANK, SLOW_FACTOR = 3, 2.0
_FORWARD_S, _BACKWARD_S, _REDUCE_S, _OPTIMIZER_S = 0.010, 0.020, 0.002, 0.004


def _operations(stage: int, dp_rank: int, step: int) -> list[dict]:
    """Return one worker's step: forward, backward, gradient reduction, optimizer."""
    rank = stage * REPLICAS + dp_rank
    factor = SLOW_FACTOR if rank == SLOW_RANK else 1.0
    last_start = (_FORWARD_S + _BACKWARD_S) * SLOW_FACTOR
    computed = (_FORWARD_S + _BACKWARD_S) * factor
    times = [
        ("forward-compute", 0.0, _FORWARD_S * factor, 0),
        ("backward-compute", _FORWARD_S * factor, _BACKWARD_S * factor, 0),
        ("grads-reduce-scatter", computed, last_start + _REDUCE_S - computed, -1),
        ("optimizer", last_start + _REDUCE_S, _OPTIMIZER_S, -1),
    ]
    place = {"dp_rank": dp_rank, "stage": stage, "rank": rank, "step": step}
    return [
        {**place, "optype": kind, "start_ts": start, "duration": length, "seq_id": 0}
        | {"mc": 0, "mb_id": microbatch, "gmc": stage}
        for kind, start, length, microbatch in times
    ]


def write_job(path: Path, steps: int = STEPS, *, communicates: bool = True) -> Path:
    """Write DP4 with one rank of twice the compute time; return the folder."""
    path.mkdir(parents=True)
    rows = [
        row
        for step in range(steps)
        for stage in range(STAGES)
        for dp_rank in range(REPLICAS)
        for row in _operations(stage, dp_rank, step)
        if communicates or "reduce" not in row["optype"]
    ]
    frame = pd.DataFrame(rows).astype({"optype": "category"})
    frame.to_parquet(path / "trace-job.parquet")
    (path / "meta-job.yaml").write_text(
        f"dp_size: {REPLICAS}\npp_size: {STAGES}\ntp_size: 1\nvpp_size: 1\nworld_size: 4\n"
    )
    return path


def write_synthetic(folder: Path, *faults: str, steps: int = 4) -> str:
    """Write a simulated pipeline of PP2 x DP2 with faults; return its run id."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=1, pp=2, dp=2),
        schedule=ScheduleKind.ONE_F_ONE_B,
        steps=steps,
        faults=tuple(map(parse_fault, faults)),
    )
    trace, truth = generate(job)
    return write_run(job, trace, truth, folder).name


@pytest.fixture
def runs_dir(tmp_path):
    """Return a folder with one readable job and one file that is no trace."""
    folder = tmp_path / "runs"
    write_job(folder / "job")
    (folder / "notes.txt").write_text("not a trace\n")
    return folder


@pytest.fixture
def store(runs_dir):
    """Return a store of that folder."""
    return RunStore(runs_dir)


@pytest.fixture
def client(runs_dir):
    """Return a client of a dashboard of that folder."""
    return create_app(runs_dir).server.test_client()

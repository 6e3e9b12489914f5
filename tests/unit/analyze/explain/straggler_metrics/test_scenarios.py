"""Replays of a job: what is kept comes back as recorded."""

import numpy as np
import pytest
from tests.ndtimeline_jobs import JobShape, job_frame, write_frame
from tests.slow_published import SlowJob

from meshscope.analyze.explain.straggler_metrics.job import read_job
from meshscope.analyze.explain.straggler_metrics.scenarios import (
    Replayer,
    Scenario,
    everything,
    nothing,
)

SHAPES = [
    JobShape(pp=3, dp=2, microbatches=4),
    JobShape(pp=2, dp=3, vpp=2, microbatches=4, overlapped=True, tp=8),
    JobShape(pp=1, dp=2, microbatches=2),
]


def settled(shape):
    """Return a job whose times follow from its own dependencies: no operation starts too early."""
    frame = job_frame(shape).astype({"start_ts": "float64", "duration": "float64"})
    slow = SlowJob(frame)
    times = [slow.replay(step, lambda key: True) for step in slow.steps]
    start = {key: value for starts, _ in times for key, value in starts.items()}
    end = {key: value for _, ends in times for key, value in ends.items()}
    names = zip(frame["optype"].astype(str), frame["seq_id"], frame["stage"], strict=True)
    keys = list(zip(frame["step"], frame["dp_rank"], names, strict=True))
    frame["start_ts"] = [start[key] for key in keys]
    frame["duration"] = [end[key] - start[key] for key in keys]
    return frame


def replay(path, *scenarios):
    """Return the replayer of a job and the step times of scenarios."""
    replayer = Replayer(read_job(path))
    return replayer, replayer.replay(scenarios).span_s


@pytest.mark.parametrize("shape", SHAPES)
def test_recorded_lengths_and_delays_give_the_recorded_steps(tmp_path, shape):
    """A scenario that repairs nothing would change something."""
    frame = settled(shape)
    late = frame["optype"] == "optimizer"
    frame.loc[late, "start_ts"] += 0.25
    replayer, spans = replay(
        write_frame(tmp_path, frame),
        Scenario(own_length=everything, delayed=everything),
        Scenario(own_length=everything),
    )
    assert spans[0] == pytest.approx(replayer.measured_s(), rel=1e-12)
    assert spans[1] == pytest.approx(replayer.measured_s() - 0.25, rel=1e-12)


@pytest.mark.traces
def test_the_real_job_replays_as_recorded(traces_dir):
    """A dependency that was not there would delay what was recorded earlier."""
    replayer, spans = replay(
        traces_dir / "straggler_analysis" / "trace-ST.parquet",
        Scenario(own_length=everything, delayed=everything),
    )
    # The file has its ends only to the precision of its 32-bit times.
    assert spans[0] == pytest.approx(replayer.measured_s(), rel=2e-7)


def test_blocks_of_lanes_give_what_all_at_once_gives(tmp_path, monkeypatch):
    """Large jobs would be computed otherwise than small ones."""
    path = write_frame(tmp_path, job_frame(JobShape(pp=2, dp=2, steps=7)))
    scenarios = [Scenario(own_length=everything), Scenario(own_length=nothing)] * 3
    _, whole = replay(path, *scenarios)
    monkeypatch.setattr("meshscope.analyze.explain.straggler_metrics.scenarios.BLOCK_VALUES", 1500)
    _, parts = replay(path, *scenarios)
    assert np.array_equal(whole, parts)


def test_steps_come_in_order_whatever_their_pattern(tmp_path):
    """Times of one step would be shown under the number of another."""
    frame = job_frame(JobShape(pp=2, dp=1, steps=3))
    frame = frame[(frame["optype"] != "gc") | (frame["step"] != 10)]
    replayer, _ = replay(write_frame(tmp_path, frame), Scenario(own_length=everything))
    ends = frame["start_ts"].astype(float) + frame["duration"].astype(float)
    assert replayer.steps.tolist() == [7, 10, 13]
    assert replayer.measured_s() == pytest.approx(ends.groupby(frame["step"]).max().to_list(), 1e-6)

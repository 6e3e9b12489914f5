"""Tables of vTrain: all-reduces that were measured on A100s, and iterations of Megatron.

Its iterations are called measured. Those without a pipeline and with one replica lie on one plane
of layers and microbatches to the last digit, as no measurement does, so they are taken for what
another simulator says, which shares no code with ours.
"""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.align.communication.bandwidth import with_bandwidth
from meshscope.analyze.formulas.schedules.graph import PassCosts, schedule_graph
from meshscope.analyze.formulas.schedules.plan import make_plan
from meshscope.probe.schema.terms import ScheduleKind

pytestmark = pytest.mark.traces

COLUMNS = ["gpus", "global_batch", "microbatch", "hidden", "heads", "layers"]
COLUMNS += ["sequence", "tp", "dp", "pp", "ms"]


@pytest.fixture(scope="module")
def iterations(traces_dir):
    """Return the iteration times, with the microbatches of each."""
    path = traces_dir / "vtrain" / "data" / "ground_truth_single.csv"
    table = pd.read_csv(path, encoding="utf-8-sig", names=COLUMNS, header=0)
    assert len(table) == 1440
    return table.assign(m=table["global_batch"] // table["microbatch"] // table["dp"])


@cache
def graph(pp, m):
    """Return the graph of 1F1B."""
    return schedule_graph(make_plan(ScheduleKind.ONE_F_ONE_B, pp, m))


def fitted(rows):
    """Return ms of a layer and of the output head a microbatch, and of a layer and of all else a step.

    Least squares of the relative error over jobs without a pipeline, whose layers and microbatches
    both differ.
    """
    parts = np.c_[rows["m"] * rows["layers"], rows["m"], rows["layers"], np.ones(len(rows))]
    parts /= rows[["ms"]].to_numpy()
    found = np.linalg.lstsq(parts, np.ones(len(rows)), rcond=None)[0]
    assert parts @ found == pytest.approx(1.0, abs=1e-2 if rows["dp"].iloc[0] > 1 else 1e-9)
    return found


def prediction_ms(job, layer_ms, head_ms, layer_step_ms, rest_ms):
    """Return the iteration time of a pipeline whose last stage has the output head."""
    own = np.full(job.pp, job.layers / job.pp * layer_ms)
    own[-1] += head_ms
    # Forward is a third of a pass forth and back; the step is as long with any other share.
    forward, backward = (own * 1e6 / 3).astype(np.int64), (own * 1e6 / 3).astype(np.int64)
    found = graph(job.pp, job.m)
    costs = PassCosts(forward_ns=forward, backward_input_ns=backward, backward_weight_ns=backward)
    step_ms = found.times(costs.of_passes(found.plan)).makespan_ns[0] / 1e6
    return step_ms + job.layers / job.pp * layer_step_ms + rest_ms


def errors(iterations, *, has_head):
    """Return pp and the relative error of each pipelined job that jobs without a pipeline foretell."""
    rows = []
    for _, jobs in iterations.groupby(["tp", "dp", "microbatch", "hidden"]):
        known = jobs[jobs["pp"] == 1]
        if known["m"].nunique() < 2:  # What is done once a step looks like more of a microbatch.
            continue
        layer_ms, head_ms, layer_step_ms, rest_ms = fitted(known)
        for job in jobs[jobs["pp"] > 1].itertuples():
            if has_head:
                predicted_ms = prediction_ms(job, layer_ms, head_ms, layer_step_ms, rest_ms)
            else:
                even_ms = layer_ms + head_ms / job.layers
                predicted_ms = prediction_ms(job, even_ms, 0.0, layer_step_ms, rest_ms)
            rows.append((job.pp, predicted_ms / job.ms - 1.0))
    return pd.DataFrame(rows, columns=["pp", "error"]).groupby("pp")["error"]


def test_pipelines_are_foretold_from_jobs_without_one(iterations):
    """Replay of uneven stages would agree with nobody's but our own."""
    found = errors(iterations, has_head=True)
    assert found.size().to_dict() == {2: 360, 4: 144}
    off = found.apply(lambda error: error.abs().quantile([0.5, 0.95])).unstack()
    assert off[0.5].to_dict() == pytest.approx({2: 0.0065, 4: 0.0108}, abs=1e-4)
    assert off[0.95].to_dict() == pytest.approx({2: 0.0191, 4: 0.0357}, abs=1e-4)
    # With the head spread over the stages, none would wait for it.
    even = errors(iterations, has_head=False).median()
    assert even.to_dict() == pytest.approx({2: -0.0407, 4: -0.1064}, abs=1e-4)


@pytest.mark.parametrize("gpus", range(2, 9))
def test_bus_bandwidth_is_that_of_the_nccl_tests(traces_dir, gpus):
    """Links would be held against a rating in another unit."""
    path = traces_dir / "vtrain" / "trace" / "a100" / f"AR_GPU{gpus}_1M_1024M_LUT"
    measured = pd.read_csv(path)
    assert len(measured) == 1024
    for time, bandwidth in (("time(ns)", "busbw(GB/s)"), ("time(ns).1", "busbw(GB/s).1")):
        rows = pd.DataFrame({"size_bytes": measured["size(B)"], "wire_ns": measured[time]})
        found = with_bandwidth(rows.assign(kind="all_reduce", expected=gpus))
        reported = found["bus_bandwidth_bytes_per_s"].to_numpy(np.float64) / 1e9
        # Times and bandwidths were printed with four digits.
        assert reported == pytest.approx(measured[bandwidth].to_numpy(), rel=1e-3)

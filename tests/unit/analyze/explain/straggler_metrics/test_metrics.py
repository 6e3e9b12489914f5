"""The published metrics: against the published numbers, and against a slow second writing."""

import json
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ndtimeline_jobs import JobShape, job_frame, write_frame, write_job
from tests.slow_published import SlowJob

from meshscope.analyze.explain.straggler_metrics import published_metrics
from meshscope.analyze.output.json.stragglers import published_to_json

FOLDER = "straggler_analysis"
MERGED = {"forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm",
          "backward-send": "backward-pp-comm", "backward-recv": "backward-pp-comm"}  # fmt: skip


@st.composite
def shapes(draw):
    """Return jobs of a few hundred operations, interleaved or not."""
    pp, vpp = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return JobShape(
        pp=pp,
        vpp=vpp,
        dp=draw(st.integers(1, 3)),
        tp=draw(st.integers(1, 4)),
        dsp=draw(st.integers(1, 2)),
        microbatches=pp * draw(st.integers(1, 2)),
        steps=draw(st.integers(1, 2)),
        overlapped=draw(st.booleans()),
        first_receive=vpp == 1 or pp == 1 or draw(st.booleans()),
        idle_transfers=draw(st.booleans()),
        noise=draw(st.sampled_from([0.001, 0.05, 0.15])),
    )


def assert_same(expected, found, path=""):
    """Compare published forms: keys, nulls, and numbers within the published tolerance."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), path
        for key, value in expected.items():
            assert_same(value, found[key], f"{path}/{key}")
    elif isinstance(expected, float):
        close_to_zero = path.rsplit("/", 1)[-1] in ("rem", "add", "Ms", "Mw")
        rel, absolute = (0.0, 1e-5) if close_to_zero else (1e-6, 0.0)
        assert found == pytest.approx(expected, rel=rel, abs=absolute), path
    else:
        assert found == expected, path


def slow_parts(job, name, reference, times_of):
    """Return the decomposition of one slowdown by the slow replay."""

    def billed(key):
        kind, seq, stage = key[2]
        if (
            name == "launch"
            and seq == 0
            and kind == ("forward-recv" if stage else "forward-compute")
        ):
            return "first-op"
        return MERGED.get(kind, kind)

    found = {}
    for axis, label in (
        ("optype", billed),
        ("dp_rank", lambda key: str(key[1])),
        ("stage", lambda key: str(key[2][2])),
    ):
        finish = {
            value: [last for _, last in times_of(lambda key, v=value, f=label: f(key) == v)]
            for value in {label(key) for key in job.start}
        }
        mean = fmean(reference)
        found[f"{name}_decompose_by_{axis}"] = {
            value: fmean(times) / mean for value, times in finish.items()
        }
        found[f"{name}_decompose_by_{axis}_per_step"] = {
            str(step): {value: times[i] / reference[i] for value, times in finish.items()}
            for i, step in enumerate(job.steps)
        }
    return found


def slow_result(job):
    """Return ``result`` and ``ms`` of a job by the slow replay."""
    nothing, everything = (lambda key: False), (lambda key: True)
    recorded, ideal = job.step_times(everything), job.step_times(nothing)
    measured = [
        max(v for k, v in job.end.items() if k[0] == step)
        - min(v for k, v in job.start.items() if k[0] == step)
        for step in job.steps
    ]
    numbers = {
        "step_t_base": measured,
        "step_t_nodelay": [span for span, _ in recorded],
        "step_t_noblk": [span for span, _ in ideal],
    }
    result = {
        key: dict(zip(map(str, job.steps), values, strict=True)) for key, values in numbers.items()
    }
    reference, ideal_end = [last for _, last in recorded], [last for _, last in ideal]
    result["launch_slowdown"] = fmean(measured) / fmean(reference)
    result["blocking_slowdown"] = fmean(numbers["step_t_nodelay"]) / fmean(ideal_end)
    if result["blocking_slowdown"] >= 1.03:
        result |= slow_parts(job, "blocking", ideal_end, job.step_times)
    if result["launch_slowdown"] >= 1.03:
        result |= slow_parts(
            job, "launch", reference, lambda chosen: job.step_times(everything, chosen)
        )
    return result


def slow_repair(job, chosen, name):
    """Return the numbers of M_W or M_S by the slow replay."""

    def mean_span(keeps):
        return fmean(span for span, _ in job.step_times(keeps))

    recorded, ideal = mean_span(lambda key: True), mean_span(lambda key: False)
    removed, added = mean_span(lambda key: not chosen(key)), mean_span(chosen)
    found = {"trem": removed, "tadd": added, "tori": recorded, "tideal": ideal}
    if abs(recorded - ideal) > 1e-4 * ideal:
        found[name] = (recorded - removed) / (recorded - ideal)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder that examples write their jobs to."""
    return tmp_path_factory.mktemp("jobs")


@given(shape=shapes(), seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_any_job_gives_what_an_event_loop_gives(folder, shape, seed):
    """A rule, a group or a lane would be wrong for some shape of job."""
    frame = job_frame(shape, seed)
    slow = SlowJob(frame)
    found = json.loads(
        json.dumps(published_to_json(published_metrics(write_job(folder, shape, seed))))
    )
    expected = slow_result(slow)
    assert_same(expected, found["result"])
    for name in ("blocking", "launch"):
        key = f"{name}_decompose_by_dp_rank"
        assert (found["result"][key] is None) == (key not in expected)
    last = shape.pp - 1
    assert_same(slow_repair(slow, lambda key: key[2][2] == last, "Ms"), found["ms"])
    if "blocking_decompose_by_stage" not in expected:
        assert found["mw"]["Mw"] is found["mw"]["trem"] is found["heatmap"] is None
        return
    by_dp, by_stage = (expected[f"blocking_decompose_by_{axis}"] for axis in ("dp_rank", "stage"))
    place = min(
        slow.rank, key=lambda p: (-min(by_dp[str(p[0])], by_stage[str(p[1])]), slow.rank[p])
    )
    worst = slow_repair(slow, lambda key: (key[1], key[2][2]) == place, "Mw")
    assert_same(worst, found["mw"])
    assert found["limits"] == []


@pytest.mark.traces
@pytest.mark.parametrize("name", ["result", "ms", "mw"])
def test_every_published_number_of_the_real_job_is_met(traces_dir, name):
    """Users of the published tool would see other numbers for the same job."""
    published = json.loads((traces_dir / FOLDER / f"{name}-ST.json").read_text())
    metrics = published_metrics(traces_dir / FOLDER / "trace-ST.parquet")
    found = json.loads(json.dumps(published_to_json(metrics)))[name]
    assert_same(published, found)
    assert found.keys() == published.keys()
    assert list(found.get("blocking_decompose_by_optype") or {}) == list(
        published.get("blocking_decompose_by_optype") or {}
    )


def test_the_ideal_step_is_the_same_for_every_step(tmp_path):
    """Something that differs between steps would have leaked into the ideal."""
    metrics = published_metrics(write_job(tmp_path, JobShape(pp=4, vpp=2, microbatches=8, steps=5)))
    assert np.ptp(metrics.ideal_s) < 1e-12
    assert len(set(metrics.recorded_s)) == 5


def test_workers_with_equal_times_have_no_straggler(tmp_path):
    """A job without stragglers would be told to have some."""
    frame = job_frame(JobShape(pp=3, dp=2, microbatches=6, steps=2), seed=1)
    length = frame.groupby("optype", observed=True)["duration"].transform("mean")
    compute = [
        "forward-compute",
        "backward-compute",
        "optimizer",
        "gc",
        "layernorm-grads-all-reduce",
    ]
    is_work = frame["optype"].isin(compute)
    frame["duration"] = frame["duration"].where(~is_work, length).astype("float32")
    metrics = published_metrics(write_frame(tmp_path, frame))
    shares = metrics.slowdown_parts
    by_work = {} if shares is None else shares.optype.overall
    assert all(by_work.get(name, 1.0) == pytest.approx(1.0, abs=1e-9) for name in compute)


@pytest.mark.parametrize(("dp_rank", "stage", "rank"), [(1, 2, 28), (0, 0, 0), (2, 3, 44)])
def test_the_slow_worker_has_the_highest_score(tmp_path, dp_rank, stage, rank):
    """The repair of M_W would be taken on a healthy worker."""
    shape = JobShape(pp=4, dp=3, tp=4, microbatches=8, noise=0.001)
    frame = job_frame(shape)
    slow = (frame["dp_rank"] == dp_rank) & (frame["stage"] == stage)
    slow &= frame["optype"].isin(["forward-compute", "backward-compute"])
    frame.loc[slow, "duration"] *= 3
    metrics = published_metrics(write_frame(tmp_path, frame))
    scores = metrics.worker_slowdowns()
    worst = max(scores, key=scores.__getitem__)
    assert (worst, metrics.ranks[worst]) == ((dp_rank, stage), rank)
    assert metrics.worst_workers.removed_frac > 0.9
    assert metrics.waste_frac == pytest.approx(1 - 1 / metrics.slowdown)


def test_more_work_never_makes_a_step_shorter(tmp_path):
    """A longer operation would seem to save time."""
    shape = JobShape(pp=2, dp=2, microbatches=4, steps=1)
    before = published_metrics(write_frame(tmp_path, job_frame(shape)))
    frame = job_frame(shape)
    frame.loc[frame["optype"] == "backward-compute", "duration"] *= 1.5
    after = published_metrics(write_frame(tmp_path, frame))
    assert (after.recorded_s >= before.recorded_s).all()
    assert (after.ideal_s >= before.ideal_s).all()


def test_a_pipeline_of_one_stage_lists_declared_types_as_the_published_tool_does(tmp_path):
    """A key that the published file has would be missing."""
    shape = JobShape(pp=1, dp=4, microbatches=3, noise=0.15)
    metrics = published_metrics(write_job(tmp_path, shape))
    assert metrics.slowdown_parts.optype.overall["first-op"] == 1.0

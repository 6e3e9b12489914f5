"""Reading a job: what is kept, what is left out, and what is said about it."""

import numpy as np
import pandas as pd
import pytest
from tests.ndtimeline_jobs import JobShape, job_frame, write_frame, write_job
from tests.texts import texts

from meshscope.analyze.explain.straggler_metrics import published_metrics
from meshscope.analyze.explain.straggler_metrics.job import read_job
from meshscope.probe.schema.errors import TraceFormatError

SHAPE = JobShape(pp=2, dp=2, microbatches=3, steps=3)
STEPS = [7, 10, 13]


def without(frame, **place):
    """Return the frame without the rows at a place."""
    return frame[~np.logical_and.reduce([frame[name] == value for name, value in place.items()])]


def mentions(job, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(job.limits))


def same_as_alone(tmp_path, frame, steps):
    """Say whether a job gives what its whole steps give alone."""
    found = published_metrics(write_frame(tmp_path, frame, "all"))
    alone = published_metrics(write_frame(tmp_path, frame[frame["step"].isin(steps)], "some"))
    assert found.steps.tolist() == steps
    return found.slowdown == alone.slowdown


@pytest.mark.parametrize(
    "place",
    [
        {"step": 10, "dp_rank": 1},
        {"step": 10, "rank": 3},
        {"step": 10, "stage": 1},
        {"step": 10, "rank": 0, "optype": "gc"},
        {"step": 10, "rank": 1, "optype": "forward-compute", "seq_id": 2},
    ],
)
def test_a_step_with_something_missing_is_left_out_and_reported(tmp_path, place):
    """What was not recorded would count as fast, or end the analysis."""
    frame = without(job_frame(SHAPE), **place)
    assert mentions(read_job(write_frame(tmp_path, frame)), "1 step of 3", ": 10")
    assert same_as_alone(tmp_path, frame, [7, 13])


def test_a_first_step_that_is_not_whole_gives_no_rules(tmp_path):
    """The dependencies of the whole job would be those of its one broken step."""
    frame = without(job_frame(SHAPE), step=7, stage=0, optype="forward-send")
    assert texts(read_job(write_frame(tmp_path, without(frame, step=7, dp_rank=1))).limits)
    assert same_as_alone(tmp_path, without(frame, step=7, dp_rank=1), [10, 13])


def test_an_operation_recorded_twice_leaves_its_step_out(tmp_path):
    """Operations of other workers would be taken for each other."""
    frame = job_frame(SHAPE)
    twice = pd.concat([frame, frame[frame["step"] == 13].iloc[[4]]])
    assert mentions(read_job(write_frame(tmp_path, twice)), "recorded twice", ": 13")
    assert same_as_alone(tmp_path, twice, [7, 10])


def test_operations_of_only_some_steps_get_a_graph_of_their_own(tmp_path):
    """A collection of garbage every few steps would throw all other steps away."""
    frame = without(job_frame(SHAPE), step=10, optype="gc")
    job = read_job(write_frame(tmp_path, frame))
    assert [pattern.steps.tolist() for pattern in job.patterns] == [[7, 13], [10]]
    assert texts(job.limits) == texts(read_job(write_frame(tmp_path, job_frame(SHAPE))).limits)
    assert published_metrics(write_frame(tmp_path, frame)).steps.tolist() == STEPS


def test_a_replica_without_one_of_its_stages_is_left_out(tmp_path):
    """A worker that was never recorded would throw all steps away."""
    frame = without(job_frame(JobShape(pp=2, dp=3, steps=2)), dp_rank=1, stage=1)
    job = read_job(write_frame(tmp_path, frame))
    assert job.dp_ranks.tolist() == [0, 2]
    assert mentions(job, "Replicas", ": 1")
    assert published_metrics(write_frame(tmp_path, frame)).ranks.keys() == {
        (0, 0), (0, 1), (2, 0), (2, 1),
    }  # fmt: skip


def test_one_rank_stands_for_a_tensor_parallel_group(tmp_path):
    """A trace of all ranks of a group would be refused, or its operations counted twice."""
    frame = job_frame(JobShape(pp=2, dp=2, tp=2))
    both = pd.concat([frame, frame.assign(rank=frame["rank"] + 1)])
    job = read_job(write_frame(tmp_path, both, "both"))
    assert mentions(job, "4 ranks share", "stands for")
    alone = published_metrics(write_frame(tmp_path, frame, "alone"))
    assert published_metrics(tmp_path / "trace-both.parquet").last_stage == alone.last_stage


def test_the_order_of_rows_means_nothing(tmp_path):
    """Operations would be taken for each other where a file is sorted otherwise."""
    frame = job_frame(SHAPE)
    mixed = frame.sample(frac=1, random_state=1)
    one = published_metrics(write_frame(tmp_path, frame, "A"))
    other = published_metrics(write_frame(tmp_path, mixed, "B"))
    assert one.slowdown == other.slowdown
    assert one.last_stage == other.last_stage


def test_optypes_that_are_plain_text_and_a_missing_column_are_read(tmp_path):
    """A file written by another tool would be refused for its encoding."""
    frame = job_frame(JobShape(pp=2, vpp=2, microbatches=4))
    plain = frame.drop(columns="gmc").astype({"optype": "object", "start_ts": "float64"})
    job = read_job(write_frame(tmp_path, plain))
    assert mentions(job, "gmc")
    whole = read_job(write_frame(tmp_path, frame))
    chunks = [[own.global_chunk for own in one.patterns[0].operations] for one in (job, whole)]
    of_compute = [own.chunk >= 0 and "compute" in own.optype for own in job.patterns[0].operations]
    assert np.ptp(np.array(chunks)[:, of_compute], axis=0).max() == 0


def test_unusable_rows_are_counted(tmp_path):
    """Rows would be dropped without a word."""
    frame = job_frame(SHAPE)
    frame["optype"] = frame["optype"].cat.add_categories(["moe-dispatch"])
    extra = frame.iloc[[0]].assign(optype="moe-dispatch")
    timeless = frame.iloc[[1]].assign(duration=np.float32("nan"), seq_id=99)
    mixed = pd.concat([frame, extra, timeless])
    mixed["optype"] = mixed["optype"].astype(str)
    assert mentions(read_job(write_frame(tmp_path, mixed)), f"2 of {len(mixed)} operations")


def test_lengths_below_zero_are_reported(tmp_path):
    """Metrics of a file that cannot be right would look like those of any other."""
    frame = job_frame(SHAPE)
    assert not mentions(read_job(write_frame(tmp_path, frame)), "end before the start")
    frame.loc[[5, 50], "duration"] = np.float32(-0.5)
    assert mentions(read_job(write_frame(tmp_path, frame)), "2 operations", "end before the start")


@pytest.mark.parametrize("column", ["stage", "seq_id"])
def test_numbers_that_no_job_has_are_left_out(tmp_path, column):
    """One damaged value would end the analysis of all other steps with a traceback."""
    frame = job_frame(SHAPE).astype({column: "int64"})
    frame.loc[frame.index[-1], column] = 1 << 61
    job = read_job(write_frame(tmp_path, frame))
    assert mentions(job, f"1 of {len(frame)} operations")
    assert job.patterns[0].steps.tolist() == STEPS[:2]


def test_nulls_stand_for_what_does_not_apply(tmp_path):
    """Another writer's empty cells would become numbers."""
    frame = job_frame(JobShape(pp=2, vpp=2, microbatches=4))
    empty = frame.astype({"mc": "Int64", "gmc": "Int64"})
    empty[["mc", "gmc"]] = empty[["mc", "gmc"]].mask(empty[["mc", "gmc"]] < 0)
    job = read_job(write_frame(tmp_path, empty, "E"))
    plain = read_job(write_frame(tmp_path, frame, "F"))
    assert [one.operations for one in job.patterns] == [one.operations for one in plain.patterns]
    assert texts(job.limits) == texts(plain.limits)


@pytest.mark.parametrize("content", [b"PAR1 torn", None])
def test_damaged_files_are_named(tmp_path, content):
    """A torn copy would end in a traceback."""
    path = write_frame(tmp_path, job_frame(SHAPE).assign(stage="first"))
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceFormatError, match=r"trace-J\.parquet: cannot be read"):
        read_job(path)


def test_jobs_without_a_whole_step_are_refused(tmp_path):
    """Numbers would be made up, or a traceback shown."""
    frame = job_frame(SHAPE)
    for rows, why in (
        (frame[frame["optype"] == "first-op"], "no operation"),
        (without(frame, rank=1, optype="gc"), "no step is whole"),
        (without(without(frame, dp_rank=0, stage=0), dp_rank=1, stage=0), "no replica"),
        (frame.assign(rank=0), "several places"),
    ):
        with pytest.raises(TraceFormatError, match=why):
            read_job(write_frame(tmp_path, rows))


def test_operations_that_wait_for_each_other_are_refused(tmp_path):
    """Wrong clocks would end in a traceback."""
    frame = job_frame(SHAPE)
    swapped = frame["optype"].isin(["forward-compute"]) & (frame["stage"] == 1)
    frame.loc[swapped, "start_ts"] = 10 - frame.loc[swapped, "start_ts"]
    with pytest.raises(TraceFormatError, match="cycle"):
        published_metrics(write_frame(tmp_path, frame))


def test_the_meta_file_gives_the_sizes_and_its_absence_is_reported(tmp_path):
    """Sizes that nobody stated would be reported as facts."""
    shape = JobShape(pp=2, dp=2, tp=4)
    known = read_job(write_job(tmp_path, shape))
    assert known.meta == {
        "trial_name": "J", "run_id": 0, "dp_size": 2, "pp_size": 2, "tp_size": 4, "dsp_size": 1,
        "vpp_size": 1, "world_size": 16,
    }  # fmt: skip
    assert texts(known.limits) == ()
    (tmp_path / "bare").mkdir()
    bare = read_job(write_frame(tmp_path / "bare", job_frame(shape), "K"))
    assert (bare.meta["trial_name"], bare.meta["dp_size"], bare.meta["tp_size"]) == ("K", 2, None)
    assert mentions(bare, "meta-*.yaml")

"""Which file the published metrics are read from."""

import json

import pytest
from tests.ndtimeline_jobs import JobShape, job_frame, write_frame, write_job

from meshscope.analyze.explain.straggler_metrics import find_job
from meshscope.analyze.read.source_files import content_key
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.rundir import create_run

SHAPE = JobShape(pp=1, dp=1, microbatches=1, steps=1)


@pytest.fixture
def job(tmp_path):
    """Return the trace of a small job in a folder of its own."""
    folder = tmp_path / "job"
    folder.mkdir()
    return write_job(folder, SHAPE)


def ingested(runs, job, **changes):
    """Return a run directory that says it was made from a job."""
    section = {
        "content_key": content_key([job])[0], "origin": "ndtimeline", "source": str(job),
        "per_step_clock": True, "ranks": [0], "limits": [],
    }  # fmt: skip
    return create_run(runs, "J", {"world_size": 1, "ingested": section | changes})


def test_files_folders_and_patterns_lead_to_the_trace(job):
    """Users would have to know which of the files counts."""
    assert find_job(job) == find_job(job.parent) == find_job(job.parent / "*.parquet") == job


def test_an_ingested_run_leads_to_its_source(tmp_path, job):
    """A job that was ingested would lose its published metrics."""
    assert find_job(ingested(tmp_path / "runs", job)) == job


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"content_key": "0"}, "has changed"),
        ({"source": "/nowhere/trace.parquet"}, "is gone"),
        ({"origin": "kineto"}, "made from kineto"),
    ],
)
def test_a_run_whose_source_is_not_what_was_ingested_is_refused(tmp_path, job, changes, why):
    """Numbers of another job would be shown under the name of this one."""
    with pytest.raises(TraceFormatError, match=why):
        find_job(ingested(tmp_path / "runs", job, **changes))


def test_other_inputs_are_reported_what_is_needed(tmp_path, job):
    """Users of --compat on their own captures would see a traceback."""
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": []}))
    own = create_run(tmp_path / "runs", "own", {"world_size": 1})
    write_frame(job.parent, job_frame(SHAPE), "second")
    for path, why in (
        (trace, "no NDTimeline job"),
        (own, "is not an NDTimeline job"),
        (job.parent, "contains 2 jobs"),
        (tmp_path / "absent", "no such file"),
    ):
        with pytest.raises(TraceFormatError, match=why):
            find_job(path)

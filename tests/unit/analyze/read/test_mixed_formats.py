"""Files of several formats behind one path: one job with side records, or several jobs."""

import pytest
from tests.fuzz.seeds import SEEDS, write
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError

TIMELINES = ["kineto", "ndtimeline", "pipeline_visualiser"]


@pytest.mark.parametrize("first", TIMELINES)
@pytest.mark.parametrize("second", TIMELINES)
def test_timelines_of_two_formats_in_folders_apart_are_two_jobs(tmp_path, first, second):
    """Fails when one job is shown under the name of a folder that holds two."""
    if first == second:
        pytest.skip("one format, which its own reader tells apart")
    write(tmp_path / "a", SEEDS[first]())
    write(tmp_path / "b", SEEDS[second]())
    with pytest.raises(TraceFormatError, match="several jobs") as error:
        import_trace(tmp_path)
    assert str(tmp_path / "a") in str(error.value)
    assert str(tmp_path / "b") in str(error.value)


def test_a_timeline_below_the_one_that_is_read_belongs_to_it(tmp_path):
    """Fails when the picture that a tool drew of a job makes the job unreadable."""
    write(tmp_path, SEEDS["ndtimeline"]())
    write(tmp_path / "drawn", SEEDS["kineto"]())
    trace = import_trace(tmp_path)
    assert trace.origin == "ndtimeline"
    assert any("another format (Kineto)" in limit for limit in texts(trace.limits))


def test_side_records_of_a_job_in_folders_of_their_own_are_no_other_job(tmp_path):
    """Fails when traces cannot be read because dumps of the same job lie in the next folder."""
    write(tmp_path / "traces", SEEDS["kineto"]())
    write(tmp_path / "dumps", SEEDS["flight_recorder_pickle"]())
    (tmp_path / "notes.txt").write_text("hello")
    trace = import_trace(tmp_path)
    assert trace.origin == "kineto"
    assert any("another format (flight recorder)" in limit for limit in texts(trace.limits))
    assert any("no trace: notes.txt" in limit for limit in texts(trace.limits))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 2}]}', "execution trace"),
        ('{"traceEvents": []}'.encode("utf-16"), "UTF-16"),
    ],
    ids=["execution trace", "utf-16"],
)
def test_what_is_no_trace_is_named(tmp_path, content, what):
    """Fails when nobody learns why a file that looks like a trace is none."""
    (tmp_path / "rank0.json").write_bytes(content)
    with pytest.raises(TraceFormatError, match=f"is .*{what}"):
        import_trace(tmp_path)

"""What is a trace is decided by content, and what is none is refused with a remedy."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshscope.analyze.importers import import_trace
from meshscope.analyze.importers.detect import InputFile, InputFormat, classify
from meshscope.probe.schema.errors import TraceFormatError

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": [KERNEL]}).encode()


def test_the_name_plays_no_part(tmp_path):
    """A compressed trace saved without its suffix would be refused, a log named .json accepted."""
    (tmp_path / "no-suffix").write_bytes(gzip.compress(TRACE))
    (tmp_path / "log.json").write_text('{"level": "info"}')
    formats = {p.name: classify(InputFile(str(p), p)) for p in tmp_path.iterdir()}
    assert formats == {"no-suffix": InputFormat.KINETO, "log.json": InputFormat.UNKNOWN}


def test_a_folder_is_read_with_all_below_it_and_the_rest_is_counted(tmp_path):
    """Traces in one folder per host would not be found, or a log would refuse them all."""
    for rank in (0, 1):
        (tmp_path / f"host{rank}").mkdir()
        (tmp_path / f"host{rank}" / f"rank{rank}.json").write_bytes(TRACE)
    (tmp_path / "stdout.log").write_text("hello")
    trace = import_trace(tmp_path)
    assert trace.ranks == (0, 1)
    assert any("1 file of the input" in limit for limit in trace.limits)


def test_files_of_another_format_are_counted(tmp_path):
    """Logs beside the traces would vanish without a word, or hide them."""
    (tmp_path / "rank0.json").write_bytes(TRACE)
    (tmp_path / "pp_rank_0.json").write_text('{"1": {"total": 1, "fwd_start": [0.5]}}')
    (tmp_path / "a-pid1.log").write_text('{"metadata": {"dump_timestamp_us": 1}}')
    trace = import_trace(tmp_path)
    assert trace.origin == "kineto"
    assert any("2 files" in limit and "another format" in limit for limit in trace.limits)


def test_a_glob_chooses_files(tmp_path):
    """A run with two exports per rank could not be read at all."""
    for name in ("a_rank0.json", "b_rank0.json"):
        (tmp_path / name).write_bytes(TRACE)
    assert import_trace(tmp_path / "b_*.json").ranks == (0,)
    with pytest.raises(TraceFormatError, match="no file matches"):
        import_trace(tmp_path / "c_*.json")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"plain text",
        b"[[1, 2, 3]]",
        b'{"a": 1}',
        b"PAR1 but no parquet",
        b"\x1f\x8b but no gzip",
        b"\x80\x04N.",
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_a_remedy(tmp_path, content):
    """The user would see a traceback, or an empty report."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match="no trace") as caught:
        import_trace(path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_an_empty_folder_a_missing_path_and_a_folder_of_other_files(tmp_path):
    """A typing mistake would look like a run without events."""
    with pytest.raises(TraceFormatError, match="empty"):
        import_trace(tmp_path)
    with pytest.raises(TraceFormatError, match="no such file"):
        import_trace(tmp_path / "absent")
    for name in "ab":
        (tmp_path / name).write_text(name)
    with pytest.raises(TraceFormatError, match="none of its 2 files"):
        import_trace(tmp_path)


def test_a_parquet_file_of_something_else_is_no_trace(tmp_path):
    """Any table beside the traces would be read as a job."""
    pq.write_table(pa.table({"rank": [1]}), tmp_path / "x.parquet")
    with pytest.raises(TraceFormatError, match="no trace"):
        import_trace(tmp_path / "x.parquet")

"""What is a trace is decided by content, and what is none is refused with a remedy."""

import errno
import gzip
import inspect
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.analyze.read.detect import classify
from meshscope.analyze.read.files import InputFile
from meshscope.analyze.read.input_paths import look
from meshscope.analyze.read.ndtimeline.columns import NDTIMELINE_COLUMNS
from meshscope.probe.schema.errors import TraceFormatError

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": [KERNEL]}).encode()


def test_the_name_plays_no_part(tmp_path):
    """A compressed trace saved without its suffix would be refused, a log named .json accepted."""
    (tmp_path / "no-suffix").write_bytes(gzip.compress(TRACE))
    (tmp_path / "log.json").write_text('{"level": "info"}')
    formats = {p.name: classify(InputFile(str(p), p)) for p in tmp_path.iterdir()}
    assert formats == {"no-suffix": "kineto", "log.json": "unknown"}


def test_a_folder_is_read_with_all_below_it_and_the_rest_is_counted(tmp_path):
    """Traces in one folder per host would not be found, or a log would refuse them all."""
    for rank in (0, 1):
        (tmp_path / f"host{rank}").mkdir()
        (tmp_path / f"host{rank}" / f"rank{rank}.json").write_bytes(TRACE)
    (tmp_path / "stdout.log").write_text("hello")
    trace = import_trace(tmp_path)
    assert trace.ranks == (0, 1)
    assert any("1 file of the input" in limit for limit in texts(trace.limits))


def test_files_of_another_format_are_counted(tmp_path):
    """Logs beside the traces would vanish without a word, or hide them."""
    (tmp_path / "rank0.json").write_bytes(TRACE)
    (tmp_path / "pp_rank_0.json").write_text('{"1": {"total": 1, "fwd_start": [0.5]}}')
    (tmp_path / "a-pid1.log").write_text('{"metadata": {"dump_timestamp_us": 1}}')
    trace = import_trace(tmp_path)
    assert trace.origin == "kineto"
    for named in ("(pipeline visualiser) ", "(NCCL Inspector) "):
        assert any("1 file " in limit and named in limit for limit in texts(trace.limits))


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
    with pytest.raises(TraceFormatError, match="not a trace") as caught:
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
    with pytest.raises(TraceFormatError, match="not a trace"):
        import_trace(tmp_path / "x.parquet")


def test_a_byte_order_mark_does_not_hide_a_trace(tmp_path):
    """A file that went through an editor would lose its rank."""
    mark = b"\xef\xbb\xbf"
    (tmp_path / "rank0.json").write_bytes(mark + TRACE)
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(mark + TRACE))
    assert import_trace(tmp_path).ranks == (0, 1)
    log = mark + b'{"dump_timestamp_us": 1}'
    (tmp_path / "log").write_bytes(log)
    assert classify(InputFile("log", tmp_path / "log")) == "nccl_inspector"
    assert InputFile("log", tmp_path / "log").read() == log[3:]


def test_files_that_are_left_out_are_named_with_the_reason(tmp_path):
    """The user would look for the rank that is missing among a thousand files."""
    (tmp_path / "rank0.json").write_bytes(TRACE)
    (tmp_path / "rank1.json").write_bytes(b"")
    (tmp_path / "rank2.json").write_bytes(TRACE.decode().encode("utf-16"))
    limits = texts(import_trace(tmp_path).limits)
    assert any("2 files" in limit for limit in limits)
    assert any("rank1.json (empty or damaged)" in limit for limit in limits)
    assert any("rank2.json (UTF-16 or UTF-32 text)" in limit for limit in limits)


def test_links_out_of_the_folder_are_counted_and_not_followed(tmp_path):
    """A folder from somebody else could have any file of the reader's read and shown."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
    (outside / "rank1.json").write_bytes(TRACE)
    (inside / "rank0.json").write_bytes(TRACE)
    (inside / "rank1.json").symlink_to(outside / "rank1.json")
    (inside / "more").symlink_to(outside)
    (inside / "latest.json").symlink_to(inside / "rank0.json")
    (inside / "gone.json").symlink_to(inside / "nothing")
    os.mkfifo(inside / "pipe")
    trace = import_trace(inside)
    assert trace.ranks == (0,)
    for what in (
        "2 links out of the folder",
        "1 link to a file that does not exist",
        "1 special file",
    ):
        assert any(what in limit for limit in texts(trace.limits))
    (tmp_path / "link").symlink_to(inside)
    assert import_trace(tmp_path / "link").ranks == (0,)
    assert import_trace(inside / "rank1.json").ranks == (1,)


def test_a_folder_may_be_deep(tmp_path):
    """The walk would end in a RecursionError."""
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("rank0.json", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 200)
    try:
        found = look(tmp_path)
    finally:
        sys.setrecursionlimit(usual)
    assert [file.name for file in found.files] == ["rank0.json"]
    os.unlink("rank0.json", dir_fd=folder)
    os.close(folder)
    # Level by level from above, because what clears the temporary folder recurses.
    while (tmp_path / "d" / "d").exists():
        (tmp_path / "d" / "d").rename(tmp_path / "e")
        (tmp_path / "d").rmdir()
        (tmp_path / "e").rename(tmp_path / "d")


def test_a_file_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    """One file of another user would stop the reading of all ranks."""
    (tmp_path / "rank0.json").write_bytes(TRACE)
    (tmp_path / "rank1.json").write_bytes(TRACE)
    real = Path.open

    def refuse(path, *args, **kwargs):
        if path.name == "rank1.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    trace = import_trace(tmp_path)
    assert trace.ranks == (0,)
    assert any(
        "rank1.json" in limit and "Permission denied" in limit for limit in texts(trace.limits)
    )
    with pytest.raises(TraceFormatError, match="Permission denied"):
        import_trace(tmp_path / "rank1.json")


def test_names_with_control_characters_are_escaped(tmp_path):
    """A file name could move the cursor of the terminal and fake a result."""
    (tmp_path / "rank0.json").write_bytes(TRACE)
    (tmp_path / "a\x1b[31m\nb\u202e.log").write_text("hello")
    limits = texts(import_trace(tmp_path).limits)
    assert all(limit.isprintable() for limit in limits)
    assert any(r"a\x1b[31m\nb\u202e.log" in limit for limit in limits)


def test_timelines_beside_other_traces_do_not_hide_them_silently(tmp_path):
    """The Kineto files of a job would be left out without a word."""
    table = {name: pa.array([0]) for name in NDTIMELINE_COLUMNS - {"optype"}}
    table |= {"optype": pa.array(["forward-compute"]), "duration": pa.array([1.0])}
    pq.write_table(pa.table(table), tmp_path / "trace-a.parquet")
    (tmp_path / "meta-a.yaml").write_text("dp_size: 1\npp_size: 1\n")
    (tmp_path / "rank0.json").write_bytes(TRACE)
    trace = import_trace(tmp_path)
    assert trace.origin == "ndtimeline"
    assert any("1 file " in limit and "rank0.json" in limit for limit in texts(trace.limits))


@pytest.mark.parametrize("kind", ["list", "object", "log"])
def test_a_gzip_bomb_is_refused(tmp_path, kind, monkeypatch):
    """A few megabytes from a stranger would fill the memory of whoever looks at them."""
    monkeypatch.setattr("meshscope.analyze.read.byte_source._HARMLESS_BYTES", 1 << 20)
    monkeypatch.setattr(
        "meshscope.analyze.read.files.InputFile.read.__kwdefaults__", {"most_bytes": 1 << 20}
    )
    start = {
        "list": b'[{"ph": "B", "cat": "kernel"}, "',
        "object": b'{"traceEvents": [{"ph": "X", "args": {"rank": 1}}, {"args": {"rank": 2}}, ',
        "log": b'{"dump_timestamp_us": 1, "coll_perf": "',
    }[kind]
    (tmp_path / "rank0").write_bytes(gzip.compress(start + b" " * (8 << 20)))
    with pytest.raises(TraceFormatError, match=r"200 times|larger than"):
        import_trace(tmp_path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[2024-05-01 10:00:00] iteration 10/500\n", "text, such as a log"),
        ("[rank 0] hello\n", "text, such as a log"),
        ("[ 12.3] NVRM: Xid 79\n", "text, such as a log"),
        ("[1, 2, 3]", "JSON without events"),
        ('[\n {"a": 1}]', "JSON without events"),
        ("[]", "JSON without events"),
    ],
)
def test_lines_in_brackets_are_no_json(tmp_path, text, what):
    """Fails when a log whose lines begin with a bracket is called JSON."""
    path = tmp_path / "train.log"
    path.write_text(text)
    with pytest.raises(TraceFormatError, match=what):
        import_trace(path)


def test_a_trace_of_a_browser_is_not_to_be_recorded_again(tmp_path):
    """Fails when a file of another tool, which is whole, is said to be unfinished."""
    path = tmp_path / "trace.json"
    event = {"cat": "devtools.timeline", "name": "RunTask", "ph": "X", "ts": 1, "dur": 2}
    path.write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(TraceFormatError, match=r"record with torch\.profiler"):
        import_trace(path)

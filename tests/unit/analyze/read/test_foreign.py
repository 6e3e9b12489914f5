"""Files that we cannot read are recognised, and the way to one that we can is said."""

import bz2
import gzip
import json
import lzma
import sqlite3
import zipfile

import pyarrow as pa
import pytest
from tests.kineto_files import launched, step, write

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 278935599\n"


@pytest.mark.parametrize(
    ("name", "content", "what", "way_out"),
    [
        ("a.sqlite", LFS, "Git LFS pointer", "git lfs pull"),
        ("rank0.json.gz", LFS, "Git LFS pointer", "git lfs pull"),
        ("report.nsys-rep", b"\0\1\2", "Nsight Systems", "nsys export --type sqlite"),
        ("old.qdrep", b"\0\1\2", "Nsight Systems", "nsys export --type sqlite"),
        ("a.ncu-rep", b"NVR\0", "Nsight Compute", "nsys profile"),
        ("ncu.csv", b'"ID","Process ID","Process Name"\n', "Nsight Compute", "nsys profile"),
        ("sum.csv", b"Time (%),Total Time (ns),Instances\n", "nsys stats", "--type sqlite"),
        ("trace.csv", b"Start (ns),Duration (ns),CorrId\n", "nsys stats", "--type sqlite"),
        ("api.csv", b'"Start (ns)","Duration (ns)","Name"\n', "nsys stats", "--type sqlite"),
        ("r.json", b'{"Type":80,"CudaEvent":{"startNs":"1"}}\n', "JSON export", "--type sqlite"),
        ("host.xplane.pb", b"\n\1\2", "XPlane", "torch.profiler"),
        ("dlprof_dldb.sqlite", b"SQLite format 3\0", "DLProf", "nsys"),
        ("results.csv", b'"Name","Calls","TotalDurationNs"\n', "rocprof", "torch.profiler"),
        ("x_results.json", b'{"rocprofiler-sdk-tool": []}', "rocprof", "torch.profiler"),
        ("ascend_pytorch_profiler_0.db", b"SQLite format 3\0", "Ascend", "trace_view.json"),
        ("trace.pftrace", b"\n\1\2", "Perfetto", "traceconv"),
        ("page.json", b"<!DOCTYPE html><html>", "HTML", "raw file"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c\0\4", "packed by 7z", "Unpack"),
        ("a.json.lz4", b"\x04\x22\x4d\x18d@", "LZ4", "Unpack"),
        ("events.out.tfevents.17.host", b"\x18\0\0\0", "TensorBoard", "pt.trace.json"),
        ("perf.data", b"PERFILE2\1", "Linux perf", "meshscope run"),
        ("py.speedscope.json", b'{"profiles": []}', "Python functions", "export_chrome_trace"),
        ("rank0.json", '{"traceEvents": []}'.encode("utf-16"), "UTF-16", "iconv"),
        ("rank0.json", b"../.git/annex/objects/aB/SHA256E-s9--1.json\n", "git-annex", "annex get"),
        ("op_summary_0_2026.csv", b"Device_id,Model Name,Op Name\n", "Ascend", "trace_view.json"),
        ("kernel_details.csv", b"Step Id,Name,Type\n", "Ascend", "trace_view.json"),
        ("smi.csv", b"timestamp, name, utilization.gpu [%]\n", "device samples", "meshscope run"),
        ("hl.txt", b"+---+\n| HL-SMI Version:  hl-1.15.0 |\n", "device samples", "meshscope run"),
        ("rocm.txt", b"=== ROCm System Management Interface ===\n", "device samples", "meshscope"),
        (
            "t.txt",
            b"----\n  Name    Self CPU %   Self CPU\n",
            "table of the PyTorch",
            "export_chrome_trace",
        ),
        (
            "et.json",
            b'{"schema": "1.1", "nodes": [{"id": 1}]}',
            "execution trace",
            "export_chrome_trace",
        ),
        ("t.json", b'{"ph":"X","args":{"a":1}}\n{"ph":"X"}\n', "one event each", "jq -s"),
        ("nccl.log", b"node1:12:34 [0] NCCL INFO Channel 00/16\n", "log of NCCL", "Inspector"),
        ("n.json", b'[\n{},\n{"cat": "GROUP_API", "ph": "b"}]', "log of NCCL", "Inspector"),
        (
            "out.log",
            b" iteration 1/ 5 | elapsed time per iteration (ms): 9",
            "log of training",
            "meshscope run",
        ),
        (
            "t.json.gz",
            gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0),
            "compressed twice",
            "gunzip",
        ),
        ("rank0.json", '{"traceEvents": []}'.encode("utf-16-le"), "UTF-16", "iconv"),
        ("rank0.json", '{"traceEvents": []}'.encode("utf-16-be"), "UTF-16", "iconv"),
        ("old.nvvp", b"SQLite format 3\0", "nvprof", "nsys profile"),
        ("m.bin", b"memray\0\x0b\0", "Python functions", "meshscope run"),
        ("s.txt", b"train.py(10): main;aten::mm 1234\n", "Python functions", "meshscope run"),
        ("a.cpuprofile", b'{"nodes": []}', "Python functions", "meshscope run"),
        ("perfetto-trace-1.proto", b"\n\1\2", "Perfetto", "traceconv"),
        ("rank0.et", b"\n\1\2", "execution trace", "meshscope run"),
        ("m.prom", b"# HELP DCGM_FI_DEV_GPU_UTIL x\n", "counters of devices", "meshscope run"),
        ("q.txt", b"==============NVSMI LOG==============\n", "counters", "meshscope run"),
        ("eth.txt", b"NIC statistics:\n     rx_prio0_pause: 0\n", "networks", "meshscope run"),
        ("p.hatchet", b'[{"metrics": {"time (ns)": 1}}]', "the result of", "made from"),
        ("b.json", b'{"mean_ttft_ms": 10}', "a benchmark", "made from"),
        ("hta.csv", b"rank,idle_time(us),compute_time(us)\n", "an analysis", "made from"),
        ("nemo.log", b"iteration 5/9 | train_step_timing in s: 1.2", "log of training", "run"),
        ("titan.log", b"[titan] step: 10  loss: 7.01  tps: 1,000", "log of training", "run"),
        ("all.json", b'[{"traceEvents": [{"ph": "X"}]}]', "list of whole traces", "jq -c"),
        ("trace.json", b'{"message": "Not Found"}', "error message", "file itself"),
        (
            "trace.json",
            b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>',
            "error message",
            "file itself",
        ),
    ],
)
def test_what_it_is_and_the_way_out(tmp_path, name, content, what, way_out):
    """Fails when who gives a file of another tool gets the list of all that we read, and no next step."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceFormatError) as caught:
        import_trace(tmp_path / name)
    assert what in caught.value.what
    assert way_out in caught.value.remedy


def test_a_folder_of_several_kinds_names_each(tmp_path):
    """Fails when only the first foreign file of a folder is recognised."""
    (tmp_path / "a.nsys-rep").write_bytes(b"\0")
    (tmp_path / "b.xplane.pb").write_bytes(b"\n")
    with pytest.raises(TraceFormatError) as caught:
        import_trace(tmp_path)
    assert "Nsight Systems" in caught.value.what
    assert "XPlane" in caught.value.what


def packed(folder, form):
    """Write one trace in a packed form."""
    plain = write(folder / "trace_rank3.json", [step(1, 0, 100), *launched("k", 1, 9, 50, 1)], 3, 4)
    content = plain.read_bytes()
    plain.unlink()
    path = folder / f"trace_rank3.json.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("folder/trace_rank3.json", content)
    elif form == "zst":
        with pa.CompressedOutputStream(str(path), "zstd") as sink:
            sink.write(content)
    else:
        path.write_bytes({"xz": lzma, "bz2": bz2}[form].compress(content))
    return path


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"loss": 1.2}', "JSON without events"),
        (b"<?xml version='1.0'?><svg/>", "XML"),
        (b"\x80\x04N.", "pickle without"),
        (b"PAR1PAR1", "parquet without"),
        (b"SQLite format 3\0", "SQLite database without"),
        (b"Collecting data\n", "text"),
        (b"\1\2\3\0\0", "binary data"),
    ],
)
def test_what_is_of_no_tool_is_named_by_its_form(tmp_path, content, what):
    """Fails when who gives a wrong file does not see which one it was."""
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(TraceFormatError, match=what):
        import_trace(tmp_path / "file")


@pytest.mark.parametrize("form", ["zip", "zst", "xz", "bz2"])
def test_packed_files_are_read(tmp_path, form):
    """Fails when a trace has to be unpacked by hand."""
    trace = import_trace(packed(tmp_path, form))
    assert trace.ranks == (3,)
    assert len(trace.frame("kernel")) == 1


@pytest.mark.parametrize("form", ["zip", "zst", "xz", "bz2"])
def test_a_packed_file_that_is_damaged(tmp_path, form):
    """Fails when a download that broke off ends in a traceback."""
    path = packed(tmp_path, form)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(TraceFormatError, match="cannot be unpacked"):
        import_trace(path)


def test_names_in_an_archive_cannot_leave_its_folder(tmp_path):
    """Fails when an archive writes over files of its reader."""
    path = tmp_path / "job.zip"
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../rank0.json", json.dumps({"traceEvents": [event]}))
    assert len(import_trace(path).frame("kernel")) == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["job.zip"]


def test_what_fills_the_disk_is_refused(tmp_path):
    """Fails when a small archive of zeros fills the disk."""
    path = tmp_path / "zeros.json.xz"
    path.write_bytes(lzma.compress(b"\0" * (300 << 20), preset=0))
    with pytest.raises(TraceFormatError, match="unpacks to more than"):
        import_trace(path)


def test_why_nsight_recorded_nothing(tmp_path):
    """Fails when who has the wrong driver is told to switch on what was on."""
    path = tmp_path / "rank0.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(
            """CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT);
            INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 1, 'Profiling has started.'),
            (2, 2, 'No events collected.'), (3, 3, 'CUPTI_ERROR_INVALID_DEVICE');"""
        )
    database.close()
    with pytest.raises(TraceFormatError) as caught:
        import_trace(path)
    assert "CUPTI_ERROR_INVALID_DEVICE | No events collected." in caught.value.what
    assert "started" not in caught.value.what


def test_a_database_of_nvprof_is_none_of_nsight(tmp_path):
    """Fails when activities of nvprof, whose tables are called alike, are said to be none."""
    with sqlite3.connect(tmp_path / "old.db") as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (start INT, end INT)")
        database.execute("CREATE TABLE StringTable (_id_ INT, value TEXT)")
    with pytest.raises(TraceFormatError, match="nvprof"):
        import_trace(tmp_path / "old.db")

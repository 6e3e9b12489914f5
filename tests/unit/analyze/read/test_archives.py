"""What is packed in an archive is read as if it had been unpacked, whatever its format."""

import gc
import gzip
import io
import json
import os
import tarfile
import tempfile

import pytest
from tests.nsight_exports import Export
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError

COLLECTIVE = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}


def kernel(ts, rank=None, **change):
    """Return one kernel; a merging tool notes its rank."""
    args = {"device": 0, "stream": 7, "correlation": 1} | ({} if rank is None else {"rank": rank})
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": 2,
            "args": args} | change  # fmt: skip


def mark(ph, ts):
    """Return a begin or an end."""
    return kernel(ts, ph=ph)


def trace_text(events, **header):
    """Return a Kineto file."""
    return json.dumps(header | {"traceEvents": events}).encode()


def pack(path, members, mode="w:gz"):
    """Write an archive of named contents; return its path."""
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def unpack(path, members):
    """Write the same contents as files; return their folder."""
    for name, content in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


MERGED = trace_text([kernel(ts, rank=rank) for ts in (1, 5) for rank in (0, 3)])
PASSES = {"total": 9, "fwd_start": [0.5], "fwd_end": [1], "bwd_start": [2], "bwd_end": [3]}
DUMP = {"pg_config": {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}}, "pg_status": {}}
MEMBERS = {
    "merged": {"run/merged.json": MERGED},
    "merged and compressed": {"merged.json.gz": gzip.compress(MERGED)},
    "begin and end": {"rank2.json": trace_text([mark("B", 1), mark("E", 9)])},
    "bare list": {"rank2.json": json.dumps([mark("B", 1), mark("E", 9)]).encode()[:-1]},
    "one file a rank": {
        f"host{rank}/trace.json": trace_text([kernel(1)], distributedInfo={"rank": rank})
        for rank in (0, 1)
    },
    "pipeline": {
        "d/pp_rank_0.json": json.dumps({"1": PASSES}).encode(),
        "d/config.json": b'{"pp_size": 1, "num_mbs": 1, "tp_size": 2}',
    },
    "flight recorder": {
        f"dump_{rank}": json.dumps(DUMP | {"version": "2.9", "rank": rank, "entries": []}).encode()
        for rank in (0, 1)
    },
    "memory": {"rank4.raw.json.gz": gzip.compress(b"[[-1, 1, 5, 0], [9, 2, 7, 4]]")},
}


@pytest.mark.parametrize("members", MEMBERS.values(), ids=MEMBERS)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_is_read_as_its_members(tmp_path, members, mode):
    """What a folder gives, its archive would not: archives are how traces are sent."""
    folder = tmp_path / "folder"
    whole = import_trace(unpack(folder, members))
    packed = import_trace(pack(tmp_path / "a.tar", members, mode))
    assert packed.ranks == whole.ranks
    assert packed.origin == whole.origin
    assert packed.layout == whole.layout
    for name in whole.tables:
        assert packed.tables[name].equals(whole.tables[name]), name


def test_an_export_of_nsight_in_an_archive(tmp_path):
    """SQLite needs a file: the export would be refused as packed."""
    path = Export().kernel("k", 10, 20, launch=5).write(tmp_path / "rank7.sqlite")
    archive = pack(tmp_path / "a.tgz", {"rank7.sqlite": path.read_bytes()})
    assert import_trace(archive).ranks == (7,)
    (tmp_path / "rank7.sqlite.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(TraceFormatError, match=r"packed.*Unpack it"):
        import_trace(tmp_path / "rank7.sqlite.gz")


def test_several_archives_and_files_are_one_input(tmp_path):
    """One archive a host would be several runs."""
    for rank in (0, 1):
        members = {"t.json": trace_text([kernel(1)], distributedInfo={"rank": rank})}
        pack(tmp_path / f"host{rank}.tgz", members)
    (tmp_path / "r2.json").write_bytes(trace_text([kernel(1)], distributedInfo={"rank": 2}))
    assert import_trace(tmp_path).ranks == (0, 1, 2)


def test_names_of_members_never_leave_the_folder(tmp_path, monkeypatch):
    """An archive could write over the files of whoever looks at it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    names = [
        "../../up_rank0.json",
        "/abs_rank1.json",
        "a/../../b_rank2.json",
        "c\n\x1b[1m_rank3.json",
    ]
    members = {name: trace_text([kernel(1)]) for name in [*names, "x" * 300 + "_rank4.json"]}
    trace = import_trace(pack(tmp_path / "a.tar", members, "w"))
    assert trace.ranks == (0, 1, 2, 3, 4)
    assert all(limit.isprintable() for limit in texts(trace.limits))
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "temporary"]
    del trace
    gc.collect()
    assert os.listdir(temporary) == []


def test_nothing_is_left_behind_by_a_failure(tmp_path, monkeypatch):
    """The disk would fill up with the traces of others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    archive = pack(tmp_path / "a.tar", {"a.json": b'{"traceEvents": [{"ph": "B", "cat": 1}]}'}, "w")
    with pytest.raises(TraceFormatError):
        import_trace(archive)
    assert os.listdir(tmp_path) == ["a.tar"]


def test_members_that_are_no_traces_are_counted(tmp_path):
    """Checkpoints in the archive would be unpacked, or links be lost without a word."""
    path = pack(
        tmp_path / "a.tar", {"rank0.json": trace_text([kernel(1)]), "w.bin": b"0" * 2**21}, "w"
    )
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("link.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    trace = import_trace(path)
    assert trace.ranks == (0,)
    assert mentions(trace, "2 members of a.tar left out")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_that_is_cut_off_gives_the_members_before(tmp_path, mode):
    """A download that broke off would be lost whole."""
    members = {
        f"rank{rank}.json": trace_text([kernel(ts) for ts in os.urandom(6_000)])
        for rank in range(3)
    }
    path = pack(tmp_path / "a.tar", members, mode)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    trace = import_trace(path)
    assert trace.ranks in ((0, 1), (0,))
    assert mentions(trace, "Left out", "a.tar", "damaged or cut off")


def test_a_damaged_header_is_not_the_end(tmp_path):
    """The ranks behind one bad byte would vanish without a word."""
    members = {f"rank{rank}.json": trace_text([kernel(1)]) for rank in range(2)}
    path = pack(tmp_path / "a.tar", members, "w")
    content = bytearray(path.read_bytes())
    content[content.index(b"rank1.json")] ^= 0xFF
    path.write_bytes(content)
    trace = import_trace(path)
    assert trace.ranks == (0,)
    assert mentions(trace, "a.tar", "damaged")


def test_a_member_that_does_not_fit_on_the_disk_is_refused(tmp_path):
    """The disk would fill up, or the reader fail half way with a traceback."""
    info = tarfile.TarInfo("rank0.json")
    info.size = 1 << 60
    head = trace_text([kernel(1)]) + b" " * (1 << 19)
    with (tmp_path / "a.tar").open("wb") as stream:
        stream.write(info.tobuf() + head)
    with pytest.raises(TraceFormatError, match=r"temporary files.*TMPDIR"):
        import_trace(tmp_path / "a.tar")


@pytest.mark.traces
def test_the_real_archive_equals_its_members(tmp_path, traces_dir):
    """Eight real ranks would differ by how they were sent."""
    archive = traces_dir / "param" / "dlrm_kineto.tar.gz"
    # Python before 3.11.4 has no filters, and from 3.12 on warns where none is chosen.
    chosen = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, **chosen)
    packed, folder = import_trace(archive), import_trace(tmp_path)
    assert packed.ranks == folder.ranks == tuple(range(8))
    for name in folder.tables:
        assert packed.tables[name].equals(folder.tables[name]), name

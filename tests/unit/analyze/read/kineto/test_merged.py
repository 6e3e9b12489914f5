"""Files into which several ranks were merged are read as if each rank had written its own."""

import gzip
import json

import pytest
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError


def event(rank, ts, **change):
    """Return one kernel of a rank, as a merging tool writes it."""
    args = {"device": 0, "stream": 7, "correlation": rank * 100 + 1, "rank": rank, "pid_raw": 5}
    return {
        "ph": "X", "cat": "kernel", "name": f"k{rank}", "pid": rank, "tid": 7, "ts": ts, "dur": 2,
        "args": args,
    } | change  # fmt: skip


def write_file(path, events, **header):
    """Write one file."""
    path.write_text(json.dumps(header | {"traceEvents": events}))
    return path


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def test_each_rank_gets_its_own_events(tmp_path):
    """All ranks would be added up as one device that is busy several times over."""
    events = [event(4, 10), event(0, 20), event(4, 30)]
    events.append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "RANK 0"}})
    header = {"deviceProperties": [{"id": 0, "name": "GPU"}], "baseTimeNanoseconds": 1000}
    trace = import_trace(write_file(tmp_path / "merged.json", events, **header))
    assert trace.ranks == (0, 4)
    rows = trace.frame("kernel")[["rank", "start_ns"]].to_numpy().tolist()
    assert rows == [[0, 21_000], [4, 11_000], [4, 31_000]]
    assert trace.run["device_name"] == "GPU"
    assert mentions(trace, "merged.json", "2 ranks")
    assert not mentions(trace, "no rank named")


def test_the_result_is_that_of_the_files_of_the_ranks(tmp_path):
    """A launch of one rank would be joined with a kernel of another."""
    launch = {"cat": "cuda_runtime", "name": "launch", "dur": 1}
    pairs = {
        rank: [
            event(rank, 50 + rank),
            event(rank, 40 - rank, **launch)
            | {"args": {"correlation": rank * 100 + 1, "rank": rank}},
        ]
        for rank in (0, 1)
    }
    whole = import_trace(write_file(tmp_path / "merged.json", pairs[0] + pairs[1]))
    folder = tmp_path / "split"
    folder.mkdir()
    for rank, events in pairs.items():
        write_file(folder / f"r{rank}.json", events, distributedInfo={"rank": rank})
    split = import_trace(folder)
    assert whole.frame("kernel")["launch_ns"].tolist() == [40_000, 39_000]
    for name in ("kernel", "step", "op", "name"):
        assert whole.tables[name].equals(split.tables[name]), name


def test_events_without_a_rank_are_counted(tmp_path):
    """Events of a careless tool would vanish without a word."""
    events = [event(0, 1), event(1, 1), event(0, 2, args={"device": 0}), event(0, 3, args=None)]
    trace = import_trace(write_file(tmp_path / "merged.json", events))
    assert len(trace.frame("kernel")) == 2
    assert mentions(trace, "2 events of merged.json left out: no rank named")


def test_a_file_of_one_rank_that_names_it_in_every_event_stays_whole(tmp_path):
    """The rank of the header would be replaced, and the events without rank be lost."""
    events = [event(0, 1), event(0, 2), event(0, 3, args={"device": 0})]
    path = write_file(tmp_path / "own.json", events, distributedInfo={"rank": 6})
    trace = import_trace(path)
    assert trace.ranks == (6,)
    assert len(trace.frame("kernel")) == 3


def test_a_rank_that_names_its_peers_in_some_events_stays_whole(tmp_path):
    """What one rank says about its peers would become ranks of their own."""
    notes = [event(peer, 5, cat="user_annotation", name="send to") for peer in (1, 2)]
    own = [event(0, ts, args={"device": 0}) for ts in (1, 2, 3)]
    path = write_file(tmp_path / "own.json", notes + own, distributedInfo={"rank": 6})
    trace = import_trace(path)
    assert trace.ranks == (6,)
    assert len(trace.frame("kernel")) == 3


def test_a_compressed_merged_file_beside_the_file_of_another_rank(tmp_path):
    """The ranks of a job that was merged in part would be lost."""
    merged = json.dumps({"traceEvents": [event(0, 1), event(1, 1)]}).encode()
    (tmp_path / "merged.json.gz").write_bytes(gzip.compress(merged))
    write_file(tmp_path / "r.json", [event(2, 1)], distributedInfo={"rank": 2})
    assert import_trace(tmp_path).ranks == (0, 1, 2)


@pytest.mark.parametrize("keep", [0.4, 0.7, 0.95])
def test_a_merged_file_that_is_cut_off_gives_what_it_has(tmp_path, keep):
    """All ranks of a job that died during the export would be lost."""
    events = [event(rank, ts) for ts in range(50) for rank in (0, 1)]
    text = json.dumps({"traceEvents": events})
    (tmp_path / "merged.json").write_text(text[: int(len(text) * keep)])
    trace = import_trace(tmp_path)
    assert trace.ranks == (0, 1)
    assert len(trace.frame("kernel")) == text[: int(len(text) * keep)].count("}}")
    assert mentions(trace, "merged.json", "cut off")


def test_odd_events_do_not_hide_the_ranks(tmp_path):
    """One event of a careless tool would make the whole file one of a single rank."""
    events = [event(0, 1), event(1, 1), event(0, 3, args=[1, 2]), event(1, 4, args={"rank": "x"})]
    trace = import_trace(write_file(tmp_path / "merged.json", events))
    assert trace.ranks == (0, 1)
    assert mentions(trace, "2 events of merged.json left out: no rank named")


def test_more_events_than_are_held_at_once(tmp_path, monkeypatch):
    """Events at the border of two writes would be lost or torn."""
    monkeypatch.setattr("meshscope.analyze.read.kineto.merged._HELD_BYTES", 1000)
    events = [event(rank, ts) for ts in range(200) for rank in range(5)]
    trace = import_trace(write_file(tmp_path / "merged.json", events))
    assert trace.frame("kernel").groupby("rank").size().tolist() == [200] * 5
    assert trace.frame("kernel")["start_ns"].max() == 199_000


def test_processes_that_name_no_rank_are_not_read_as_one(tmp_path):
    """Fails when a file that two ranks wrote is one rank with two devices, and the other rank missing."""
    events = [
        {
            "ph": "X", "cat": cat, "name": name, "pid": process, "tid": process, "ts": ts, "dur": 5,
            "args": {},
        }
        for process in (100, 101)
        for cat, name, ts in (
            ("user_annotation", "ProfilerStep#1", 0),
            ("cpu_op", "aten::mm", 1),
            ("cuda_runtime", "cudaLaunchKernel", 2),
        )
    ]  # fmt: skip
    path = write_file(tmp_path / "joined.json", events)
    with pytest.raises(TraceFormatError, match=r"several processes \(100, 101\)"):
        import_trace(path)
    # In containers each process may have the same number.
    alike = [item | {"pid": 1} for item in events]
    with pytest.raises(TraceFormatError, match=r"several threads at once \(100, 101\)"):
        import_trace(write_file(tmp_path / "joined.json", alike))
    # Of two hosts each process may have the same thread, too; their clocks differ.
    hosts = [item | {"tid": 1, "ts": item["ts"] + 3 * (item["tid"] == 101)} for item in alike]
    with pytest.raises(TraceFormatError, match="the same step twice at once"):
        import_trace(write_file(tmp_path / "joined.json", hosts))
    own = [item for item in events if item["pid"] == 100] * 40
    import_trace(write_file(tmp_path / "own.json", [*own, events[4]]))

"""Begin and end events of Chrome traces become complete events, and are read like those."""

import json

import pytest
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError


def mark(ph, name, ts, cat="kernel", tid=7, **args):
    """Return one begin or end event of a thread of process 0."""
    return {"ph": ph, "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "args": args}


def write_file(path, events):
    """Write a trace file."""
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def kernels_of(trace):
    """Return name, start and duration of the kernels."""
    names = trace.frame("name").set_index("name_id")["name"]
    rows = trace.frame("kernel")
    return sorted(zip(rows["name_id"].map(names), rows["start_ns"], rows["dur_ns"], strict=True))


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def test_nested_pairs_become_intervals(tmp_path):
    """The outer interval would end with the inner one."""
    events = [
        mark("B", "outer", 1),
        mark("B", "inner", 2.5),
        mark("E", "inner", 3),
        mark("E", "outer", 9),
        mark("B", "other", 2, tid=8),
        mark("E", "other", 4, tid=8),
    ]
    assert kernels_of(import_trace(write_file(tmp_path / "t.json", events))) == [
        ("inner", 2500, 500),
        ("other", 2000, 2000),
        ("outer", 1000, 8000),
    ]


def asynchronous(ph, name, ts, **ids):
    """Return the begin or end of an asynchronous event of a device."""
    own = {key: ids.pop(key) for key in ("id", "id2", "scope", "pid", "cat") if key in ids}
    return mark(ph, name, ts, **ids) | own


def test_asynchronous_work_of_a_device_is_joined_by_its_id(tmp_path):
    """Fails when kernels that are written as asynchronous events are not there: a device at work would idle."""
    events = [
        asynchronous("b", "first", 1, id="0x1", correlation=5),
        asynchronous("b", "second", 2, id="0x2"),
        asynchronous("e", "first", 4, id="0x1"),
        asynchronous("e", "second", 9, id="0x2"),
        asynchronous("b", "third", 11, id2={"local": 1}, pid=3),
        asynchronous("b", "other process", 12, id2={"local": 1}, pid=4),
        asynchronous("e", "third", 13, id2={"local": 1}, pid=3),
        asynchronous("e", "other process", 17, id2={"local": 1}, pid=4),
    ]
    trace = import_trace(write_file(tmp_path / "t.json", events))
    assert kernels_of(trace) == [
        ("first", 1000, 3000),
        ("other process", 12_000, 5000),
        ("second", 2000, 7000),
        ("third", 11_000, 2000),
    ]
    assert trace.frame("kernel").set_index("start_ns")["correlation"][1000] == 5


def test_asynchronous_events_of_a_host_are_none_of_a_thread(tmp_path):
    """Fails when what overlaps on a thread of the host is nested there, or ends the reading."""
    events = [
        asynchronous("b", "request", 1, id=1, cat="user_annotation"),
        {**mark("X", "kernel", 2), "dur": 3},
        asynchronous("e", "request", 9, id=1, cat="user_annotation"),
    ]
    trace = import_trace(write_file(tmp_path / "t.json", events))
    assert (len(kernels_of(trace)), len(trace.frame("annotation"))) == (1, 0)


def test_stamps_of_pairs_stay_exact(tmp_path):
    """Durations at the size of a Unix time would be off by up to 250 ns."""
    begin, end = (json.dumps(mark(ph, "k", "AT")) for ph in "BE")
    begin = begin.replace('"AT"', "1712195495505543.251")
    end = end.replace('"AT"', "1712195495505544.252")
    (tmp_path / "t.json").write_text(f'{{"traceEvents": [{begin}, {end}]}}')
    assert kernels_of(import_trace(tmp_path)) == [("k", 1712195495505543251, 1001)]


def test_pairs_and_complete_events_stand_side_by_side(tmp_path):
    """Complete events of the same file would be lost; steps of pairs be no steps."""
    events = [
        mark("B", "ProfilerStep#4", 0, "user_annotation"),
        {**mark("X", "whole", 2), "dur": 3},
        mark("B", "pair", 6, stream=9),
        mark("E", "pair", 8, correlation=5),
        mark("E", "", 10, "user_annotation"),
    ]
    events[-1]["tid"] = events[0]["tid"] = 1
    trace = import_trace(write_file(tmp_path / "t.json", events))
    assert kernels_of(trace) == [("pair", 6000, 2000), ("whole", 2000, 3000)]
    assert trace.frame("step")[["step", "dur_ns"]].to_numpy().tolist() == [[4, 10_000]]
    pair = trace.frame("kernel").set_index("start_ns").loc[6000]
    assert (pair["stream"], pair["correlation"]) == (9, 5)


def test_events_without_a_partner_are_counted(tmp_path):
    """A trace that was cut off would hide intervals without a word."""
    events = [
        mark("E", "before", 1), mark("B", "k", 2), mark("E", "k", 3), mark("B", "after", 4),
        mark("B", "timeless", None),
    ]  # fmt: skip
    trace = import_trace(write_file(tmp_path / "t.json", events))
    assert kernels_of(trace) == [("k", 2000, 1000)]
    assert mentions(trace, "3 begin or end events of")


@pytest.mark.parametrize("ending", ["]", "", ",\n", " ] \n"])
def test_a_bare_list_of_events_is_a_trace(tmp_path, ending):
    """The list form, which may lack its last bracket, would be refused."""
    events = ",\n".join(json.dumps(mark(ph, "k", ts)) for ph, ts in (("B", 1), ("E", 2)))
    (tmp_path / "rank3.json").write_text("[" + events + ending)
    trace = import_trace(tmp_path)
    assert trace.ranks == (3,)
    assert kernels_of(trace) == [("k", 1000, 1000)]


def test_pairs_of_several_ranks_in_one_file(tmp_path):
    """An end without its rank would leave the pairs of a merged file open."""
    events = [mark("B", "k", 1, rank=0), mark("E", "k", 2)]
    events += [mark("B", "k", 1, tid=8, rank=1), mark("E", "k", 3, tid=8)]
    trace = import_trace(write_file(tmp_path / "t.json", events))
    assert trace.frame("kernel")[["rank", "dur_ns"]].to_numpy().tolist() == [[0, 1000], [1, 2000]]


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([mark("B", "f", 1, "ui"), mark("E", "f", 2, "ui")], r"category.*PyTorch profiler: kernel"),
        ([mark("B", "k", "soon"), mark("E", "k", 2)], "time stamp"),
        ([mark("B", "k", 10**16), mark("E", "k", 2)], "centuries"),
    ],
)
def test_what_cannot_be_understood_is_refused(tmp_path, events, what):
    """A trace of a browser, or a damaged one, would be a run that did nothing."""
    with pytest.raises(TraceFormatError, match=what):
        import_trace(write_file(tmp_path / "t.json", events))


def test_a_damaged_file_does_not_hide_the_other_ranks(tmp_path):
    """A job would be lost to one bad stamp."""
    write_file(tmp_path / "rank0.json", [mark("B", "k", 1), mark("E", "k", 2)])
    write_file(tmp_path / "rank1.json", [mark("B", "k", "soon"), mark("E", "k", 2)])
    trace = import_trace(tmp_path)
    assert trace.ranks == (0,)
    assert mentions(trace, "Left out", "rank1.json")


def test_pairs_of_a_file_that_is_cut_off(tmp_path):
    """All pairs of a job that died during the export would be lost."""
    events = [mark(ph, "k", ts) for ts in range(0, 100, 2) for ph, ts in (("B", ts), ("E", ts + 1))]
    text = json.dumps({"traceEvents": events})
    (tmp_path / "rank0.json").write_text(text[: len(text) // 2])
    trace = import_trace(tmp_path)
    assert 20 <= len(kernels_of(trace)) <= 25
    assert mentions(trace, "rank0.json", "cut off")


def test_pairs_that_are_not_in_the_order_of_their_times(tmp_path):
    """A file that lists all ends first would have no intervals."""
    events = [
        mark("E", "", 9, correlation=4),
        mark("E", "", 3),
        mark("B", "b", 2),
        mark("B", "a", 1),
    ]
    trace = import_trace(write_file(tmp_path / "t.json", events))
    assert kernels_of(trace) == [("a", 1000, 8000), ("b", 2000, 1000)]
    assert trace.frame("kernel").set_index("dur_ns").loc[8000, "correlation"] == 4


def test_a_list_that_opens_among_the_events_ends_them(tmp_path):
    """Fails when what cannot be read as an event ends in an error that says nothing."""
    begin, end = (json.dumps(mark(ph, "k", ts)) for ph, ts in (("B", 1), ("E", 4)))
    (tmp_path / "t.json").write_text(f"[{begin}, {end}, {begin},[ {end}]")
    trace = import_trace(tmp_path)
    assert kernels_of(trace) == [("k", 1000, 3000)]
    assert mentions(trace, "t.json", "without a partner")


@pytest.mark.parametrize("phases", ["BE", "be"])
def test_pairs_behind_the_first_part_are_joined(tmp_path, phases):
    """Fails when kernels that begin and end late in a file are not there: a device at work would idle."""
    begin, end = phases
    many = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at, "dur": 1}
        for at in range(5000)
    ]
    late = [mark(begin, "gemm", 6000) | {"id": 1}, mark(end, "gemm", 6010) | {"id": 1}]
    path = write_file(tmp_path / "t.json", [*many, *late])
    assert path.read_bytes().find(b"gemm") > 1 << 18
    assert kernels_of(import_trace(path)) == [("gemm", 6_000_000, 10_000)]


def test_late_marks_of_something_else_change_nothing(tmp_path):
    """Fails when asynchronous events of a program that are none of a device end the reading."""
    many = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at, "dur": 1}
        for at in range(5000)
    ]
    late = [mark(phase, "request", 6000, cat="http") | {"id": 1} for phase in "be"]
    assert len(kernels_of(import_trace(write_file(tmp_path / "t.json", [*many, *late])))) == 5000

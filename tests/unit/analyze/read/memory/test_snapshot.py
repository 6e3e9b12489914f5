"""Snapshots of the device allocator: sums at the end, and before it by the recorded history."""

import json
import os
import pickle

import pytest
from tests.messages import values_of

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError


def frame(name, filename="train.py"):
    """Return one frame of a stack."""
    return {"name": name, "filename": filename, "line": 1}


FORWARD = [frame("linear", "torch/nn/functional.py"), frame("forward"), frame("main")]
BACKWARD = [frame("_engine_run_backward", "torch/autograd/graph.py"), frame("main")]
RECOMPUTED = [*FORWARD, *BACKWARD]
OPTIMIZER = [frame("_init_group", "torch/optim/adam.py"), frame("main")]
PARAMETER = [frame("reset_parameters", "torch/nn/modules/linear.py"), frame("forward")]


def block(address, size, frames=(), state="active_allocated", requested=None):
    """Return one block of a segment."""
    requested = size if requested is None else requested
    return {
        "address": address, "size": size, "requested_size": requested, "state": state,
        "frames": list(frames),
    }  # fmt: skip


def segment(*blocks, total=1000, device=0):
    """Return one segment."""
    return {
        "device": device, "address": blocks[0]["address"] if blocks else 0, "total_size": total,
        "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "allocated_size": 0,
        "active_size": 0, "blocks": list(blocks),
    }  # fmt: skip


def action(kind, address, size, at, frames=(), **more):
    """Return one recorded action."""
    entry = {"action": kind, "addr": address, "size": size, "stream": 0, "time_us": at}
    return entry | {"frames": list(frames)} | more


def write(path, segments, *traces, **more):
    """Write a snapshot as torch does."""
    snapshot = {"segments": segments, "device_traces": list(traces), "allocator_settings": {}}
    path.write_bytes(pickle.dumps(snapshot | more, 4))
    return path


def moments(trace):
    """Return the samples as allocated, reserved and peak."""
    rows = trace.frame("memory")[["allocated_bytes", "reserved_bytes", "peak_bytes"]]
    return rows.astype(object).where(rows.notna(), None).to_numpy().tolist()


def categories(trace, row):
    """Return the bytes by category of one sample, without those that are 0."""
    names = ("parameters", "gradients", "optimizer", "activations", "other")
    sample = trace.frame("memory").iloc[row]
    return {name: sample[f"{name}_bytes"] for name in names if sample[f"{name}_bytes"]}


def said(trace, code):
    """Return the values of the note of a code about a rank."""
    notes = [limit.values["what"] for limit in trace.limits if "what" in limit.values]
    return values_of(notes, code)


HISTORY = [
    action("segment_alloc", 0, 600, 10),
    action("alloc", 100, 200, 11, PARAMETER),
    action("alloc", 300, 300, 12, FORWARD),
    action("segment_alloc", 600, 400, 13),
    action("alloc", 600, 150, 14, BACKWARD),
    action("alloc", 800, 20, 15, RECOMPUTED),
    action("free_requested", 300, 300, 16, FORWARD),
    action("free_completed", 300, 300, 17, FORWARD),
    action("alloc", 300, 50, 18, OPTIMIZER),
    action("snapshot", 0, 0, 19),
]
AT_END = [
    segment(block(100, 200), block(300, 64, requested=50), total=600),
    segment(block(600, 150), block(800, 20), block(820, 80, state="inactive"), total=400),
]


def test_the_peak_is_found_in_the_history(tmp_path):
    """The peak would be what was left at the end, after the activations were freed."""
    trace = import_trace(write(tmp_path / "rank2_snapshot.pickle", AT_END, HISTORY))
    assert trace.ranks == (2,)
    assert moments(trace) == [[0, 0, 0], [670, 1000, 670], [420, 1000, 670]]
    assert categories(trace, 1) == {"parameters": 200, "activations": 320, "gradients": 150}
    assert categories(trace, 2) == {
        "parameters": 200,
        "activations": 20,
        "gradients": 150,
        "optimizer": 50,
    }
    assert trace.frame("memory")["time_ns"].tolist() == [10_000, 15_000, 18_000]
    assert said(trace, "scope.rounded_up")["more_bytes"] == 14


def test_a_history_without_its_beginning_still_sums_up(tmp_path):
    """The ring of actions is always full in real jobs: sums would start from zero."""
    trace = import_trace(write(tmp_path / "rank0.pickle", AT_END, HISTORY[6:]))
    assert moments(trace)[0][:2] == [670, 1000]
    assert moments(trace)[1] == [670, 1000, 670]
    assert moments(trace)[2] == [420, 1000, 670]


def test_without_a_history_only_the_end_is_known(tmp_path):
    """A peak that nobody saw would be claimed."""
    trace = import_trace(write(tmp_path / "rank0.pickle", AT_END, []))
    assert moments(trace) == [[420, 1000, None]]
    assert trace.frame("memory")["other_bytes"].isna().all()
    assert said(trace, "missing.allocator_history") == {}
    assert said(trace, "unknown.purpose_of_memory") == {}
    assert diagnose(trace).memory["peak_bytes"].tolist() == [420]


def test_segments_alone_are_a_snapshot_without_a_history(tmp_path):
    """What torch.cuda.memory_snapshot() returns would be called a pickle without segments."""
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(AT_END, 4))
    alone = import_trace(tmp_path / "rank0.pickle")
    assert moments(alone) == [[420, 1000, None]]


def test_stacks_of_blocks_serve_where_no_action_allocated_them(tmp_path):
    """Parameters, which are older than any history, would be unknown."""
    segments = [segment(block(0, 100, PARAMETER), block(100, 10, OPTIMIZER))]
    assert categories(import_trace(write(tmp_path / "rank0.pickle", segments, [])), 0) == {
        "parameters": 100,
        "optimizer": 10,
    }


def test_stacks_of_blocks_alone_are_diagnosed(tmp_path):
    """Fails when actions without stacks take those of the blocks away, or end the diagnosis with an error."""
    segments = [segment(block(16, 300, [frame("forward")]))]
    history = [action("alloc", 16, 300, 1), action("alloc", 512, 500, 2)]
    history += [action("free_completed", 512, 500, 3)]
    trace = import_trace(write(tmp_path / "rank0.pickle", segments, history))
    (finding,) = (one for one in diagnose(trace).findings if one.kind == "memory_headroom")
    lines = [str(line) for line in finding.evidence]
    assert "When most was allocated: activations 300 bytes" in lines
    assert any("500 bytes without a stack" in line for line in lines)


def test_actions_without_any_stack_are_diagnosed(tmp_path):
    """Fails when a peak without a stack, behind an empty begin, ends the diagnosis with an error."""
    segments = [segment(block(900, 10, [frame("forward")]))]
    history = [action("alloc", 16, 300, 1), action("free_completed", 16, 300, 2)]
    history += [action("alloc", 900, 10, 3)]
    trace = import_trace(write(tmp_path / "rank0.pickle", segments, history))
    lines = [str(line) for one in diagnose(trace).findings for line in one.evidence]
    assert not any(line.endswith(": ") for line in lines)


def test_failed_allocations_are_reported(tmp_path):
    """The reason for which most snapshots are made would not be mentioned."""
    failed = action("oom", 0, 64 << 20, 30, device_free=32 << 20)
    trace = import_trace(write(tmp_path / "rank0.pickle", AT_END, [*HISTORY, failed]))
    failures = {"count": 1, "asked_bytes": 64 << 20, "free_bytes": 32 << 20}
    assert said(trace, "scope.failed_allocations") == failures


def test_the_fullest_device_is_reported_and_the_others_are_named(tmp_path):
    """The memory of two devices would be added up as one."""
    segments = [segment(block(0, 5), total=10), segment(block(0, 70), total=80, device=1)]
    trace = import_trace(write(tmp_path / "rank0.pickle", segments, [], []))
    assert moments(trace) == [[70, 80, None]]
    assert said(trace, "scope.one_device") == {"devices": [0, 1], "shown": 1}


def test_of_devices_that_reserved_as_much_the_one_that_allocated_most_is_reported(tmp_path):
    """Fails when the emptier of two devices is called the fullest."""
    segments = [segment(block(0, 5), total=80), segment(block(0, 70), total=80, device=1)]
    segments[0]["allocated_size"], segments[1]["allocated_size"] = 5, 70
    trace = import_trace(write(tmp_path / "rank0.pickle", segments, [], []))
    assert said(trace, "scope.one_device") == {"devices": [0, 1], "shown": 1}


def test_a_snapshot_as_json(tmp_path):
    """Snapshots that were converted for a viewer would be refused."""
    text = json.dumps({"segments": AT_END, "device_traces": [HISTORY]})
    (tmp_path / "rank0.json").write_text(text)
    assert moments(import_trace(tmp_path))[1] == [670, 1000, 670]


class Payload:
    """Asks to be rebuilt by a call."""

    def __reduce__(self):
        """Return the call that an unpickler would make."""
        return os.mkdir, ("made-by-the-snapshot",)


def test_nothing_in_a_snapshot_is_called(tmp_path, monkeypatch):
    """A file could run code on the machine of whoever looks at it."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "rank0.pickle", AT_END, [], evil=Payload())
    with pytest.raises(TraceFormatError, match="more than contain plain values"):
        import_trace(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rank0.pickle"]


@pytest.mark.parametrize(
    "snapshot",
    [
        {"segments": 3, "device_traces": None, "total_size": 1},
        {"segments": [], "device_traces": []},
        ["segments", "total_size"],
    ],
)
def test_what_is_no_snapshot_is_refused(tmp_path, snapshot):
    """A file of another kind would be a job without memory."""
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(snapshot))
    with pytest.raises(TraceFormatError, match="memory snapshot"):
        import_trace(tmp_path)


@pytest.mark.parametrize(
    "snapshot",
    [
        {"segments": [7, {"blocks": 4, "total_size": "x"}], "device_traces": [[3, {"action": []}]]},
        {
            "segments": [{"blocks": [{"state": 1, "size": -5}]}],
            "device_traces": [[{"size": 2**70}]],
        },
        {"segments": [{"device": "x"}], "device_traces": [[action("alloc", [], "y", None)]]},
    ],
)
def test_odd_values_count_as_nothing(tmp_path, snapshot):
    """A snapshot of another version would end in a traceback."""
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(snapshot))
    assert moments(import_trace(tmp_path))[-1][0] == 0


def test_a_failed_allocation_is_the_first_finding(tmp_path):
    """Fails when who ran out of memory is told the peak, as information."""
    gib = 1 << 30
    asking = [frame("forward", "model.py"), frame("main")]
    history = [
        action("segment_alloc", gib, 78 * gib, 1),
        action("alloc", gib, 70 * gib, 2, asking),
        action("oom", 0, 5 * gib, 3, asking, device_free=gib),
        action("free_completed", gib, 70 * gib, 4, asking),
    ]
    path = write(tmp_path / "rank0.pickle", [segment(total=78 * gib)], history)
    first, *_ = diagnose(import_trace(path)).findings
    assert (first.kind, first.severity, first.cause) == (
        "memory_headroom",
        "critical",
        "out_of_memory",
    )
    text = " | ".join(map(str, first.evidence))
    for words in ("Asked for 5.00 GiB", "free on the device: 1.00 GiB", "Reserved 78.0 GiB", "70.0 GiB",
                  "79.0 GiB", "forward (model.py:1) < main"):  # fmt: skip
        assert words in text
    # 8 GiB were held and not in use: more than what was asked for.
    assert first.remedy.code == "out_of_memory.remedy_fragmented"
    assert set(import_trace(path).frame("memory")["capacity_bytes"]) == {79 * gib}


def test_memory_that_is_all_in_use_names_no_rest_of_nothing(tmp_path):
    """Fails when a row of zeros says that 0 bytes were held and not in use."""
    history = [
        action("segment_alloc", 64, 900, 1),
        action("alloc", 64, 900, 2, OPTIMIZER),
        action("oom", 0, 500, 3, OPTIMIZER, device_free=10),
        action("free_completed", 64, 900, 4, OPTIMIZER),
    ]
    path = write(tmp_path / "rank0.pickle", [segment(total=900)], history)
    first, *_ = diagnose(import_trace(path)).findings
    assert "Reserved 900 bytes, all of it in use" in map(str, first.evidence)


def test_paths_of_windows(tmp_path):
    """Fails when the state of an optimizer on Windows is memory of unknown use."""
    stack = [frame("step", r"D:\work\opt.py"), frame("_init_group", r"C:\py\torch\optim\adam.py")]
    trace = import_trace(write(tmp_path / "rank0.pickle", [segment(block(0, 7, stack))], []))
    assert categories(trace, 0) == {"optimizer": 7}


def test_what_has_no_stack_is_unknown_and_not_nothing(tmp_path):
    """Fails when memory without a stack counts as known, so that 0 bytes of parameters are claimed."""
    segments = [segment(block(0, 700), block(700, 100, OPTIMIZER))]
    trace = import_trace(write(tmp_path / "rank0.pickle", segments, []))
    (row,) = trace.frame("memory").to_dict("records")
    assert row["optimizer_bytes"] == 100
    for name in ("parameters", "gradients", "activations", "other"):
        assert row[f"{name}_bytes"] is None or str(row[f"{name}_bytes"]) in ("<NA>", "nan")
    (finding,) = diagnose(trace).findings
    assert "memory_headroom.no_stack" in {line.code for line in finding.evidence}
    assert any("200" in str(line) or "(20 %)" in str(line) for line in finding.evidence)

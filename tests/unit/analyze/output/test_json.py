"""The JSON forms that other programs rely on."""

from dataclasses import replace

import msgspec
import pytest
from tests.synthetic import MS, Job, capture
from tests.tables import trace_of

from meshscope.analyze import load_trace
from meshscope.analyze.output.json import breakdown_to_json, collectives_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text import breakdown_document, collectives_document
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.layout import ParallelLayout


def plain(value):
    """Return what a reader of the JSON gets."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=lambda scalar: scalar.item()))


def slow_rank_2(kind, rank, step, microbatch):
    """Return the work of a job in which rank 2 needs half as long again."""
    return (15 if rank == 2 else 10) * MS


def test_collectives_name_who_came_last():
    """If this fails, a program that reads the JSON blames the wrong rank."""
    job = Job(layout=ParallelLayout(dp=4), steps=2, microbatches=1)
    result = plain(collectives_to_json(capture(job, slow_rank_2)))
    first = result["collectives"][0]
    assert (first["last_rank"], first["wire_ns"], first["kind"]) == (2, job.wire_ns, "all_reduce")
    assert first["wait_ns"] == {"0": 10 * MS, "1": 10 * MS, "2": 0, "3": 10 * MS}
    assert result["ranks"]["2"] == {
        "wait_ns": 0,
        "wait_per_step_ns": 0,
        "arrived_last": 2,
        "count": 2,
        "undecided": 0,
        "unknown": 0,
        "arrived_last_frac": 1.0,
    }
    assert result["ranks"]["0"]["wait_ns"] == 20 * MS
    bus = 2 * 3 / 4 * (1 << 24) / (job.wire_ns * 1e-9)
    assert first["bus_bandwidth_bytes_per_s"] == pytest.approx(bus)


def test_waits_of_collectives_without_an_end_are_null_and_their_ranks_are_listed():
    """Fails when an unknown wait is a 0, or a rank without collectives has no row."""
    rows = [{"rank": rank, "start_ns": 1, "end_ns": None} for rank in (0, 1)]
    trace = trace_of(ranks=(0, 1, 2), collective=rows)
    result = plain(collectives_to_json(trace))
    assert {rank: row["wait_ns"] for rank, row in result["ranks"].items()} == dict.fromkeys("012")
    assert [row["unknown"] for row in result["ranks"].values()] == [1, 1, 0]
    ranks, groups = to_plain(collectives_document(result)).split("Groups")
    assert "0.000" not in ranks + groups.split("Message")[0]
    assert [line.split()[1] for line in ranks.splitlines()[2:5]] == ["unknown"] * 3


def test_groups_are_listed_with_their_axis():
    """If this fails, a reader cannot tell tensor from data parallel traffic."""
    job = Job(layout=ParallelLayout(tp=2, dp=2), steps=2)
    groups = plain(collectives_to_json(capture(job, slow_rank_2)))["groups"]
    assert {(group["axis"], tuple(group["ranks"])) for group in groups} == {
        ("tp", (0, 1)),
        ("tp", (2, 3)),
        ("dp", (0, 2)),
        ("dp", (1, 3)),
    }


def test_a_host_capture_has_no_device_breakdown_and_says_so():
    """If this fails, zeros of a capture without kernels are read as an idle device."""
    job = Job(layout=ParallelLayout(dp=2), steps=2)
    result = plain(breakdown_to_json(capture(job, slow_rank_2)))
    row = result["ranks"]["0"]
    assert row["device_events"] == 0
    assert {value for name, value in row.items() if name.endswith("_ns")} == {None}
    assert any("no kernels in this capture" in limit for limit in result["limits"])
    text = to_plain(breakdown_document(result))
    assert "0.000" not in text
    assert "diagnose shows where the step time" in text
    with pytest.raises(MeshscopeError, match="no kernels in this capture"):
        breakdown_to_json(capture(job, slow_rank_2), 1)


def test_waits_per_step_leave_out_what_the_account_leaves_out():
    """Fails when a sum over all steps, the discarded one too, stands beside figures per step."""
    job = Job(layout=ParallelLayout(dp=4), steps=5)
    trace = replace(capture(job, slow_rank_2), origin="meshscope")
    result = plain(collectives_to_json(trace))
    assert result["analysed_steps"] == 4
    row = result["ranks"]["0"]
    assert row["wait_per_step_ns"] == pytest.approx(row["wait_ns"] / 5)
    text = to_plain(collectives_document(result))
    assert "waited ms/step" in text
    assert "of the 4 steps that diagnose accounts for" in text


@pytest.mark.traces
def test_breakdown_of_one_step_and_of_a_step_that_is_not_there(traces_dir):
    """If this fails, one step's figures are those of the file, or an unknown step crashes."""
    trace = load_trace(traces_dir / "amd_hpctraining" / "split")
    whole = plain(breakdown_to_json(trace))["ranks"]["3"]
    step = plain(breakdown_to_json(trace, 10))["ranks"]["3"]
    assert 0 < step["computation_ns"] < whole["computation_ns"]
    with pytest.raises(MeshscopeError, match=r"step 99 .* 9\.\.11"):
        breakdown_to_json(trace, 99)

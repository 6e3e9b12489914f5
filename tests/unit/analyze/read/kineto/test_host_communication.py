"""Communication of the host itself: gloo leaves annotations, and no kernel."""

import pytest
from tests.texts import texts
from tests.unit.analyze.read.kineto.test_importer import event, mentions, step_note, write_rank

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.read import import_trace

WORLD = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
PAIR = {"pg_name": "1", "pg_desc": "undefined", "ranks": [0, 1]}
STEP_MS = 100


def on_thread(thread, one):
    """Return an event of another thread of the host."""
    return one | {"tid": thread}


def step_of(number, work_ms, done_ms):
    """Return a step in us: the host works, then a thread of gloo reduces until ``done_ms``."""
    begin = 1_000_000 + 1000 * STEP_MS * number
    work, done = 1000 * work_ms, 1000 * done_ms
    yield step_note(number, begin, 1000 * STEP_MS)
    yield event("cpu_op", "autograd::engine::evaluate_function: X", begin, done)
    yield event("cpu_op", "aten::mm", begin, work)
    yield event("cpu_op", "c10d::allreduce_", begin + work, 10)
    yield on_thread(9, event("user_annotation", "gloo:all_reduce", begin + work, done - work))
    yield on_thread(9, event("cpu_op", "aten::copy_", begin + done - 20, 10))


def write_job(folder, *, groups=(WORLD,), steps=6):
    """Write two ranks: one works 30 ms of a step and waits, one 70; both are done at 80."""
    for rank, work_ms in ((0, 30), (1, 70)):
        events = [one for number in range(steps) for one in step_of(number, work_ms, 80)]
        write_rank(folder / f"rank{rank}.json", events, rank=rank, world_size=2, groups=groups)
    return folder


def test_an_annotation_is_an_operation_of_the_host(tmp_path):
    """Fails when what gloo did is left out as having no device kernel."""
    trace = import_trace(write_job(tmp_path, steps=1))
    rows = trace.frame("collective").sort_values("rank")
    assert rows["kind"].tolist() == ["all_reduce"] * 2
    assert rows["group_id"].tolist() == ["0"] * 2
    assert (rows["end_ns"] - rows["start_ns"]).tolist() == [50_000_000, 10_000_000]
    assert (rows["wait_end_ns"] - rows["wait_start_ns"]).tolist() == [50_000_000, 10_000_000]


def test_the_host_waits_only_while_it_computes_nothing(tmp_path):
    """Fails when a transfer under the backward pass counts as exposed: 15 of 40 ms are."""
    events = [
        step_note(0, 1000, 90_000),
        event("cpu_op", "c10d::allreduce_", 10_000, 10),
        on_thread(9, event("user_annotation", "gloo:all_reduce", 10_000, 40_000)),
        event("cpu_op", "aten::mm", 12_000, 23_000),
    ]
    write_rank(tmp_path / "rank0.json", events, rank=0, world_size=2, groups=[WORLD])
    row = import_trace(tmp_path).frame("collective").iloc[0]
    assert row["wait_end_ns"] - row["wait_start_ns"] == 15_000_000


def test_who_makes_others_wait_is_known_without_a_device(tmp_path):
    """Fails when a job on CPUs is told that no communication was recorded: it waits 40 of 100 ms."""
    found = diagnose(load_trace(write_job(tmp_path)))
    assert not any("o communication was recorded" in limit for limit in texts(found.limits))
    bars = {bar.name: bar.dur_ns / 1e6 for bar in found.waterfall}
    assert bars["exposed_dp_wait"] == pytest.approx(20)
    assert bars["exposed_dp_wire"] == pytest.approx(10)
    ranks = found.stragglers.set_index("rank")
    assert ranks.loc[1, "wait_caused_ns"] == pytest.approx(6 * 40e6)
    assert ranks.loc[1, "arrived_last"] == 6


def test_a_rank_in_several_groups_names_none(tmp_path):
    """Fails when operations of two groups are matched as those of one."""
    trace = import_trace(write_job(tmp_path, groups=(WORLD, PAIR)))
    assert not trace.row_count("collective")
    assert mentions(trace, "6 operations on the host", "gloo:all_reduce", "group is not named")
    found = diagnose(load_trace(tmp_path))
    assert any("recorded on the host only" in limit for limit in texts(found.limits))
    assert not any("o communication was recorded:" in limit for limit in texts(found.limits))


def test_a_send_on_the_host_has_no_peer(tmp_path):
    """Fails when a transfer of a pipeline is taken for a collective of the group."""
    events = [step_note(0, 1000, 90_000), event("user_annotation", "gloo:send", 10_000, 500)]
    write_rank(tmp_path / "rank0.json", events, rank=0, world_size=2, groups=[WORLD])
    trace = import_trace(tmp_path)
    assert not trace.row_count("collective")
    row = trace.frame("p2p").iloc[0]
    assert (row["direction"], row["peer"], row["end_ns"] - row["start_ns"]) == ("send", -1, 500_000)

"""What one call leaves in the capture, on a process group that sends nothing."""

import pytest
import torch
import torch.distributed as dist
from tests.texts import texts
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshscope import probe
from meshscope.probe.compat.absent import lacks
from meshscope.probe.hooks import collectives as collectives_module
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.pair_sizes import read_pair_sizes
from meshscope.probe.session import session as session_module

SIZE = 4


@pytest.fixture
def world():
    """Make this process rank 1 of four."""
    dist.init_process_group("fake", rank=1, world_size=SIZE, store=FakeStore())
    yield
    probe.detach()
    dist.destroy_process_group()


def rows_of(run_dir, table="collective"):
    """Return one table of a run."""
    return read_run(run_dir).tables[table].to_pandas()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("call", "kind", "size_bytes"),
    [
        (lambda x, parts: dist.all_reduce(x), "all_reduce", 48),
        (lambda x, parts: dist.broadcast(x, 0), "broadcast", 48),
        (lambda x, parts: dist.reduce(x, 0), "reduce", 48),
        (lambda x, parts: dist.all_gather(parts, x), "all_gather", 48 * SIZE),
        (lambda x, parts: dist.all_gather_into_tensor(torch.cat(parts), x), "all_gather", 192),
        (lambda x, parts: dist.reduce_scatter(x, parts), "reduce_scatter", 48 * SIZE),
        (lambda x, parts: dist.reduce_scatter_tensor(x, torch.cat(parts)), "reduce_scatter", 192),
        (lambda x, parts: dist.all_to_all(parts, parts), "all_to_all", 48 * SIZE),
        (lambda x, parts: dist.all_to_all_single(x, x), "all_to_all", 48),
        (lambda x, parts: dist.gather(x, dst=0), "gather", 48),
        (lambda x, parts: dist.scatter(x, src=0), "scatter", 48 * SIZE),
        (lambda x, parts: dist.barrier(), "barrier", 0),
    ],
)
def test_kind_and_size(world, tmp_path, call, kind, size_bytes):
    """Fails when a message size breaks the convention: output for all-gather, input otherwise."""
    probe.attach(tmp_path / "run")
    call(torch.ones(12), [torch.ones(12) for _ in range(SIZE)])
    probe.detach()
    row = rows_of(tmp_path / "run").iloc[0]
    assert (row["kind"], row["size_bytes"], row["rank"]) == (kind, size_bytes, 1)
    assert row["dtype"] == "float32" or kind == "barrier"


def test_the_root_is_recorded_with_each_call(world, tmp_path):
    """Fails when members that wait for another root cannot be told from ones that agree."""
    probe.attach(tmp_path / "run")
    x = torch.ones(12)
    for call in (
        lambda: dist.broadcast(x, 3),
        lambda: dist.broadcast(x, 0),
        lambda: dist.broadcast(x, 3),
        lambda: dist.reduce(x, 2),
        lambda: dist.gather(x, dst=0),
        lambda: dist.scatter(x, src=0),
        lambda: dist.all_reduce(x),
    ):
        call()
    probe.detach()
    rows = rows_of(tmp_path / "run")
    roots = rows["root"].astype(object).where(rows["root"].notna(), None)
    assert list(roots) == ["3", "0", "3", "2", "0", "0", None]
    assert set(rows["dtype"]) == {"float32"}


@pytest.mark.parametrize(
    ("call", "sent", "expected"),
    [
        (lambda x, y: dist.all_to_all_single(y, x, [1, 2, 0, 5], [3, 1, 4, 0]), (72, 24, 96, 0), (24, 48, 0, 120)),
        (lambda x, y: dist.all_to_all_single(y, x), (48,) * SIZE, (48,) * SIZE),
        (lambda x, y: dist.all_to_all(list(y.split([1, 1, 3, 3])), list(x.split([1, 1, 3, 3]))), (24, 24, 72, 72), (24, 24, 72, 72)),
        (lambda x, y: dist.all_to_all_single(y[:0], x[:0], [0] * SIZE, [0] * SIZE), (0,) * SIZE, (0,) * SIZE),
    ],
)  # fmt: skip
def test_what_each_pair_of_an_all_to_all_carries(world, tmp_path, call, sent, expected):
    """Fails when a job whose pairs differ has nothing to compare, or is said to differ by wrong bytes."""
    probe.attach(tmp_path / "run")
    dist.all_reduce(torch.ones(2))
    call(torch.ones(8, 6), torch.ones(8, 6))
    probe.detach()
    (noted,) = read_pair_sizes(tmp_path / "run" / "rank00001")
    assert (noted.seq, noted.sent, noted.expected) == (1, sent, expected)
    assert list(rows_of(tmp_path / "run")["size_bytes"]) == [8, sum(sent)]


def test_the_end_is_the_end_of_the_wait(world, tmp_path):
    """Fails when an operation that was waited for keeps an unknown end, or the reverse."""
    probe.attach(tmp_path / "run")
    first = dist.all_reduce(torch.ones(2), async_op=True)
    second = dist.all_reduce(torch.ones(2), async_op=True)
    second.wait()
    probe.detach()
    rows = rows_of(tmp_path / "run")
    assert list(rows["seq"]) == [0, 1]
    assert rows["end_ns"].isna().tolist() == [True, False]
    assert list(rows["source"]) == ["host_issue", "host_blocking"]
    assert rows["wait_start_ns"][1] <= rows["wait_end_ns"][1] == rows["end_ns"][1]
    first.wait()


def test_a_message_names_its_peer_and_number(world, tmp_path):
    """Fails when a send cannot be joined to the receive of its peer."""
    probe.attach(tmp_path / "run")
    for peer in (2, 3, 2):
        dist.send(torch.ones(2), peer)
    dist.recv(torch.ones(2), 2)
    probe.detach()
    rows = rows_of(tmp_path / "run", "p2p")
    found = list(zip(rows["direction"], rows["peer"], rows["seq"], strict=True))
    assert found == [("send", 2, 0), ("send", 3, 0), ("send", 2, 1), ("recv", 2, 0)]
    assert set(rows["microbatch"]) == {-1}


def test_what_came_before_the_rank_was_known_is_kept(tmp_path):
    """Fails when attaching before init_process_group, without a launcher, loses records."""
    session = probe.attach(tmp_path / "run")
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
    assert session.rank == -1
    dist.init_process_group("fake", rank=2, world_size=SIZE, store=FakeStore())
    try:
        dist.all_reduce(torch.ones(2))
        assert session.rank == 2
    finally:
        probe.detach()
        dist.destroy_process_group()
    tables = read_run(tmp_path / "run").tables
    spans = tables["span"].to_pandas()
    assert set(spans["rank"]) == set(tables["collective"].to_pandas()["rank"]) == {2}
    assert (spans["kind"] == "forward").sum() == 1


def test_errors_of_the_operation_pass_through_unchanged(world, tmp_path):
    """Fails when training code that catches an error of a collective meets another type."""
    with pytest.raises(Exception) as alone:  # noqa: PT011 - whatever torch raises
        torch.ops.c10d.send([torch.ones(2)], dist.group.WORLD.boxed(), "no rank", 0)
    probe.attach(tmp_path / "run")
    with pytest.raises(type(alone.value)):
        torch.ops.c10d.send([torch.ones(2)], dist.group.WORLD.boxed(), "no rank", 0)


def test_a_failing_record_does_not_fail_the_operation(world, tmp_path, capsys):
    """Fails when an error of the probe stops a collective, or the source goes on failing."""
    session = probe.attach(tmp_path / "run")
    recorder = session._capture.recorder

    def fail(*_values):
        raise ValueError("broken")

    recorder.issue_collective = fail
    for _ in range(30):
        dist.all_reduce(torch.ones(2))
    probe.detach()
    manifest = read_run(tmp_path / "run").rank_manifests[1]
    assert manifest["counters"]["collectives_errors"] == 10
    assert manifest["annotations"]["collectives.off"] == {
        "code": "absent.error",
        "values": {"kind": "ValueError", "error": "broken"},
    }
    assert "off after 10 errors" in capsys.readouterr().err


def test_a_torch_without_redispatch_is_watched_without_collectives(world, tmp_path, monkeypatch):
    """Fails when the probe falls back to calling kernels, which deadlocks, or gives up all."""

    def missing():
        raise lacks("redispatch")

    monkeypatch.setattr(collectives_module, "dispatcher", missing)
    session = probe.attach(tmp_path / "run")
    dist.all_reduce(torch.ones(2))
    probe.step()
    probe.detach()
    assert isinstance(session, session_module.Session)
    assert session.coverage == {"collectives": "redispatch is missing"}
    capture = read_run(tmp_path / "run")
    assert capture.rank_manifests[1]["annotations"]["collectives.missing"] == {
        "code": "absent.name",
        "values": {"name": "redispatch"},
    }
    assert (
        "No record of communication on rank 1 (redispatch is missing): unseen communication counts as compute or idle time"
        in texts(capture.limits)
    )
    assert capture.rank_manifests[1]["counters"]["collectives_unseen"] == 1
    assert capture.tables["step"].num_rows == 1


def test_a_window_of_steps_lists_no_operators_anew(world, run_path, monkeypatch):
    """Fails when each window of a job over its budget pays 8 ms for its hooks in place of one."""
    listed, list_all = [], torch._C._dispatch_get_all_op_names
    monkeypatch.setattr(
        torch._C, "_dispatch_get_all_op_names", lambda: listed.append(1) or list_all()
    )
    session = probe.attach(run_dir=run_path)
    hooks = session._levels._hooks
    dist.all_reduce(torch.ones(3))
    at_start = len(listed)
    for _ in range(3):
        hooks.pause()
        hooks.resume()
        dist.all_reduce(torch.ones(3))
    assert len(listed) == at_start > 0
    probe.detach()
    assert len(rows_of(run_path)) == 4

"""Reductions that the reducer of DistributedDataParallel issues and waits for in C++, with real gloo."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from meshscope import probe
from meshscope.probe.reader.run import read_run

WIDTH = 64
SLOW_S = 0.1


def recorded(path, step, *, steps=1):
    """Return the collectives and the backward spans of some calls."""
    probe.attach(path)
    for _ in range(steps):
        step()
    probe.detach()
    capture = read_run(path)
    spans = capture.tables["span"].to_pandas()
    return capture, spans[spans["kind"] == "backward"].reset_index(drop=True)


def reductions(capture):
    """Return the all-reduces of a capture."""
    rows = capture.tables["collective"].to_pandas()
    return rows[rows["kind"] == "all_reduce"].reset_index(drop=True)


def model(layers=1, **settings):
    """Return layers whose gradients are reduced."""
    torch.manual_seed(0)
    parts = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
    return DistributedDataParallel(parts, **settings)


def backward(net):
    """Return a function that computes gradients of a model."""
    return lambda: net(torch.ones(2, WIDTH)).square().mean().backward()


def waited_ns(rows):
    """Return how long the host waited for each operation."""
    return (rows["wait_end_ns"] - rows["wait_start_ns"]).tolist()


@pytest.mark.usefixtures("lone_world")
def test_a_reduction_ends_with_the_backward_that_waits_for_it(tmp_path):
    """Fails when the wait of plain DDP for slower ranks hides in its backward."""
    capture, spans = recorded(tmp_path / "run", backward(model()), steps=3)
    rows = reductions(capture)
    assert len(rows) == len(spans) == 3
    assert (rows["wait_start_ns"] >= rows["start_ns"]).all()
    assert rows["wait_end_ns"].tolist() == rows["end_ns"].tolist()
    ends = spans["start_ns"] + spans["dur_ns"]
    assert (rows["start_ns"] > spans["start_ns"]).all()
    assert (rows["end_ns"] <= ends).all()
    assert (ends - rows["end_ns"]).median() < 1e6
    counters = capture.rank_manifests[0].get("counters") or {}
    assert "communication_end_unseen" not in counters


@pytest.mark.usefixtures("lone_world")
def test_every_bucket_ends_when_all_is_computed(tmp_path):
    """Fails when a bucket that was filled amid the backward is told to have held it up."""
    net = model(4, bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)
    backward(net)()
    backward(net)()
    capture, _ = recorded(tmp_path / "run", backward(net))
    rows = reductions(capture)
    assert len(rows) > 2
    # What is complete by then ends then, and what a busy machine has not done yet at the return.
    assert rows["end_ns"].nunique() <= 2
    assert rows["end_ns"].is_monotonic_increasing
    assert waited_ns(rows)[:-1] == [0] * (len(rows) - 1)


class Slow(torch.autograd.Function):
    """Computes its backward for a while."""

    @staticmethod
    def forward(ctx, values):
        """Return the values."""
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient, later."""
        time.sleep(SLOW_S)
        return gradient


@pytest.mark.usefixtures("lone_world")
def test_what_is_computed_after_the_last_bucket_is_no_wait(tmp_path):
    """Fails when the backward of what is not replicated is told to be communication."""
    below, net = nn.Linear(WIDTH, WIDTH), model()

    def step():
        net(Slow.apply(below(torch.ones(2, WIDTH)))).square().mean().backward()

    capture, spans = recorded(tmp_path / "run", step)
    (waited,) = waited_ns(reductions(capture))
    assert waited < SLOW_S * 1e9 / 2 < spans["dur_ns"][0]


@pytest.mark.usefixtures("lone_world")
def test_a_future_that_the_training_keeps_is_not_waited_for_in_the_backward(tmp_path):
    """Fails when what is computed after an issue counts as the wait that comes later."""
    weight, kept = nn.Parameter(torch.ones(2, WIDTH)), []
    weight.register_post_accumulate_grad_hook(
        lambda own: kept.append(dist.all_reduce(own.grad, async_op=True).get_future())
    )

    def step():
        Slow.apply(weight * 1.0).square().sum().backward()
        other = nn.Parameter(torch.ones(2))
        (Slow.apply(other * 1.0).sum() + weight.sum()).backward()
        for future in kept:
            future.wait()

    capture, _ = recorded(tmp_path / "run", step)
    rows = reductions(capture)
    waited = waited_ns(rows[rows["end_ns"].notna()])
    assert max(waited) < SLOW_S * 1e9 / 2


@pytest.mark.usefixtures("lone_world")
def test_each_thread_has_backwards_of_its_own(tmp_path):
    """Fails when a reduction in one thread is told to end with the backward of another."""
    net = model()
    other = threading.Thread(target=backward(net))

    class Beside(Slow):
        """Has another thread run its backward meanwhile."""

        @staticmethod
        def backward(ctx, gradient):
            """Return the gradient when the other is done, and later."""
            other.start()
            other.join()
            return Slow.backward(ctx, gradient)

    def step():
        Beside.apply(nn.Parameter(torch.ones(2)) * 1.0).sum().backward()

    capture, spans = recorded(tmp_path / "run", step)
    (row,) = reductions(capture).to_dict("records")
    ends = spans["start_ns"] + spans["dur_ns"]
    assert row["end_ns"] < ends.max() - SLOW_S * 1e9 / 2


@pytest.mark.usefixtures("lone_world")
def test_a_signal_handler_that_raises_does_not_end_it_all(tmp_path):
    """Fails when no end of DDP is noted any more after an exception at an odd place."""
    net = model()
    session = probe.attach(tmp_path / "run")
    dist.all_reduce(torch.ones(1))
    calls = session._hooks._collectives.pending.native
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    calls[threading.get_ident()] = left = SimpleNamespace(step=0, let_go=lambda *_: False)
    left.issued = lambda *_: None
    for _ in range(4):
        backward(net)()
        optimizer.step()
    probe.detach()
    rows = reductions(read_run(tmp_path / "run"))
    assert rows[rows["step"] >= 3]["end_ns"].notna().all()
    assert len(rows[rows["step"] >= 3])


@pytest.mark.usefixtures("lone_world")
def test_what_a_hook_of_the_training_issues_for_the_reducer_ends_too(tmp_path):
    """Fails when the hooks that compress gradients leave their reductions without an end."""

    def hook(_state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    net = model()
    net.register_comm_hook(None, hook)
    capture, spans = recorded(tmp_path / "run", backward(net))
    (end_ns,) = reductions(capture)["end_ns"]
    assert spans["start_ns"][0] < end_ns <= spans["start_ns"][0] + spans["dur_ns"][0]


@pytest.mark.usefixtures("lone_world")
def test_what_the_training_waits_for_later_ends_later(tmp_path):
    """Fails when a reduction that runs on beside the optimizer is told to have ended before."""
    weight, held = nn.Parameter(torch.ones(WIDTH)), []
    weight.register_post_accumulate_grad_hook(
        lambda own: held.append(dist.all_reduce(own.grad, async_op=True))
    )

    def step():
        weight.square().sum().backward()
        torch.ones(8).sum()
        held.pop().wait()

    capture, spans = recorded(tmp_path / "run", step)
    rows = reductions(capture)
    assert rows["wait_start_ns"][0] > spans["start_ns"][0] + spans["dur_ns"][0]


@pytest.mark.usefixtures("lone_world")
def test_functional_reductions_are_waited_for_where_they_are_used(tmp_path):
    """Fails when the backward is told to wait for what is used after it."""
    from torch.distributed import _functional_collectives as functional

    weight, reduced = nn.Parameter(torch.ones(WIDTH)), []
    weight.register_post_accumulate_grad_hook(
        lambda own: reduced.append(functional.all_reduce(own.grad, "sum", dist.group.WORLD))
    )

    def step():
        weight.square().sum().backward()
        reduced.pop().wait()

    capture, spans = recorded(tmp_path / "run", step)
    rows = reductions(capture)
    assert rows["wait_start_ns"][0] > spans["start_ns"][0] + spans["dur_ns"][0]


@pytest.mark.usefixtures("lone_world")
def test_handles_that_were_let_go_do_not_lose_their_end(tmp_path, monkeypatch):
    """Fails when gradients of more bytes than the probe may keep alive have no ends."""
    net = model(4, bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)
    backward(net)()
    backward(net)()
    monkeypatch.setenv("MESHSCOPE_MAX_PENDING_WORKS", "1")
    capture, _ = recorded(tmp_path / "run", backward(net))
    rows = reductions(capture)
    assert len(rows) > 2
    assert rows["end_ns"].notna().all()
    assert "communication_end_unseen" not in (capture.rank_manifests[0].get("counters") or {})


@pytest.mark.usefixtures("lone_world")
def test_handles_that_were_let_go_before_one_that_the_training_holds_have_no_end(
    tmp_path, monkeypatch
):
    """Fails when operations are told to be complete that nobody has waited for yet."""
    layers, held = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)]), []

    def reduce(own):
        dist.all_reduce(own.grad, async_op=True)
        if own is layers[0].weight:
            held.append(dist.all_reduce(own.grad, async_op=True))

    for weight in layers.parameters():
        weight.register_post_accumulate_grad_hook(reduce)
    monkeypatch.setenv("MESHSCOPE_MAX_PENDING_WORKS", "1")

    def step():
        layers(torch.ones(2, WIDTH)).square().mean().backward()

    capture, _ = recorded(tmp_path / "run", step)
    rows = reductions(capture)
    assert len(rows) > 2
    assert rows["end_ns"].isna().sum() >= len(rows) - 1
    assert capture.rank_manifests[0]["counters"]["communication_end_unseen"] >= len(rows) - 1


@pytest.mark.usefixtures("lone_world")
def test_buffers_are_waited_for_in_their_broadcast(tmp_path):
    """Fails when models with running statistics wait unseen at the begin of each forward."""
    net = DistributedDataParallel(nn.BatchNorm1d(WIDTH))
    capture, _ = recorded(tmp_path / "run", backward(net), steps=3)
    rows = capture.tables["collective"].to_pandas()
    broadcasts = rows[rows["kind"] == "broadcast"]
    assert len(broadcasts) >= 3
    assert rows["end_ns"].notna().all()


@pytest.mark.usefixtures("lone_world")
def test_a_backward_in_a_backward_waits_for_nothing(tmp_path):
    """Fails when the backward of a checkpointed part is told to wait for the whole."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = nn.Linear(WIDTH, WIDTH), inner

        def forward(self, values):
            return checkpoint(self.inner, Slow.apply(self.first(values)), use_reentrant=True)

    net = DistributedDataParallel(Checkpointed(), bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)
    backward(net)()
    capture, _ = recorded(tmp_path / "run", backward(net))
    rows = reductions(capture)
    assert len(rows) > 1
    assert (rows["end_ns"] >= rows["start_ns"]).all()
    assert max(waited_ns(rows)) < SLOW_S * 1e9 / 2


@pytest.mark.usefixtures("lone_world")
def test_a_backward_that_raises_leaves_nothing_behind(tmp_path):
    """Fails when the next backward is taken for a part of one that failed."""
    net = model()

    def step():
        values = net(torch.ones(2, WIDTH))
        failing = values.sum()
        failing.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            failing.backward()

    def both():
        step()
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        backward(model())()

    capture, _ = recorded(tmp_path / "run", both)
    assert reductions(capture)["end_ns"].notna().sum() == 1


class Cleared(dict):
    """Calls in progress of which another thread removes all right after one was looked up."""

    def get(self, key, default=None):
        """Return a call, and remove all."""
        found = super().get(key, default)
        self.clear()
        return found


@pytest.mark.usefixtures("lone_world")
def test_detaching_amid_a_backward_ends_no_training(tmp_path):
    """Fails when a backward raises because another thread has detached the probe at its end."""
    session = probe.attach(tmp_path / "run")
    dist.all_reduce(torch.ones(1))
    session._hooks._collectives.pending.native = Cleared()
    backward(model())()


@pytest.mark.usefixtures("lone_world")
def test_detaching_restores_the_calls(tmp_path):
    """Fails when the broadcast of DistributedDataParallel stays wrapped."""
    before = (dist._broadcast_coalesced, dist.Reducer.__dict__["_rebuild_buckets"])
    probe.attach(tmp_path / "run")
    dist.all_reduce(torch.ones(1))
    assert dist._broadcast_coalesced is not before[0]
    probe.detach()
    assert (dist._broadcast_coalesced, dist.Reducer.__dict__["_rebuild_buckets"]) == before


@pytest.mark.usefixtures("lone_world")
def test_what_was_issued_before_a_backward_is_not_its_own(tmp_path):
    """Fails when a reduction that nobody waits for is told to end with the next backward."""

    def step():
        dist.all_reduce(torch.ones(4), async_op=True)
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()

    capture, _ = recorded(tmp_path / "run", step)
    assert reductions(capture)["end_ns"].isna().all()

"""Which intervals count as forward, backward and recomputation."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meshscope import probe
from meshscope.probe.reader.run import read_run


class Block(nn.Module):
    """A layer that drops its activations and computes them again."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        """Apply the layer under activation checkpointing."""
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.fixture
def spans_of(tmp_path):
    """Return a function that runs code under the probe and returns its compute spans."""

    def run(code):
        probe.attach(tmp_path / "run", probe.ProbeConfig(sources=("compute", "steps")))
        code()
        probe.step()
        probe.detach()
        return read_run(tmp_path / "run").tables["span"].to_pandas()

    yield run
    probe.detach()


def test_nested_modules_are_one_forward(spans_of):
    """Fails when every layer makes a span, or the model none."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    spans = spans_of(lambda: model(torch.ones(1, 4)).sum().backward())
    assert list(spans["kind"]) == ["forward", "backward"]
    assert (spans["cpu_ns"] >= 0).all()
    assert spans["start_ns"][1] >= spans["start_ns"][0] + spans["dur_ns"][0]


def test_microbatches_are_counted_by_their_backwards(spans_of):
    """Fails when gradient accumulation looks like one long microbatch."""
    model = nn.Linear(4, 4)

    def accumulate():
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()

    spans = spans_of(accumulate)
    for kind in ("forward", "backward"):
        assert list(spans[spans["kind"] == kind]["microbatch"]) == [0, 1, 2]


def test_a_step_that_ends_inside_the_backward_leaves_no_microbatch_behind(spans_of):
    """Fails when updates in hooks of the backward make each step look like two microbatches."""
    model = nn.Linear(4, 4, bias=False)
    model.weight.register_post_accumulate_grad_hook(lambda _: probe.step())

    def train():
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()

    assert set(spans_of(train)["microbatch"]) == {0}


def test_recomputation_inside_a_backward_is_separated(spans_of):
    """Fails when recomputed forwards count as backward, so that hfu equals mfu."""
    model = nn.Sequential(Block(), Block())
    spans = spans_of(lambda: model(torch.ones(1, 4, requires_grad=True)).sum().backward())
    backward = spans[spans["kind"] == "backward"].iloc[0]
    again = spans[spans["kind"] == "recompute"]
    assert len(again) == 2
    assert (again["start_ns"] >= backward["start_ns"]).all()
    ends = again["start_ns"] + again["dur_ns"]
    assert (ends <= backward["start_ns"] + backward["dur_ns"]).all()


def test_a_model_that_raises_leaves_no_open_span(spans_of):
    """Fails when one failed forward silences all later ones."""
    model = nn.Linear(4, 4)

    def fail_once():
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 5))
        model(torch.ones(1, 4))

    assert list(spans_of(fail_once)["kind"]) == ["forward", "forward"]


def test_gradient_clipping_is_a_span_of_its_own(spans_of):
    """Fails when clipping, which costs a reduction over all gradients, is not seen."""
    model = nn.Linear(4, 4)

    def clip():
        model(torch.ones(1, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    assert list(spans_of(clip)["kind"])[-1] == "grad_clip"


def test_a_compiled_model_sees_no_probe(spans_of):
    """Fails when torch.compile traces into the probe, which would break its graph."""
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    model = torch.compile(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=backend, fullgraph=True
    )
    spans = spans_of(lambda: [model(torch.ones(1, 4)) for _ in range(3)])
    torch._dynamo.reset()
    assert len(graphs) == 1
    assert list(spans["kind"]) == ["forward"] * 3


class Transform(nn.Module):
    """What a prefetch thread does to a sample; it says when it begins and waits to go on."""

    def __init__(self):
        """Begin with nothing."""
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def forward(self, x):
        """Wait."""
        self.begun.set()
        assert self.go_on.wait(30)
        return x


class During(torch.autograd.Function):
    """Calls something in its backward."""

    @staticmethod
    def forward(ctx, x, act):
        """Return the input."""
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Call it."""
        ctx.act()
        return gradient, None


@pytest.mark.parametrize("trained_before", [False, True])
def test_modules_of_a_prefetch_thread(spans_of, trained_before):
    """Fails when they end the recording of forwards and backwards, or count as recomputation."""
    model, transform = nn.Linear(4, 4), Transform()
    thread = threading.Thread(target=lambda: transform(torch.ones(1)))

    def start():
        thread.start()
        assert transform.begun.wait(30)

    def train(act=lambda: None):
        During.apply(model(torch.ones(1, 4)), act).sum().backward()

    def job():
        if trained_before:
            train()
        train(start)
        train()
        transform.go_on.set()
        thread.join()
        train()

    kinds = list(spans_of(job)["kind"])
    assert kinds == ["forward", "backward"] * (3 + trained_before)

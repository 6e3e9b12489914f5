"""torch.compile compiles the same with the probe as without it, whatever the probe does meanwhile."""

from weakref import WeakKeyDictionary

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.parallel import DistributedDataParallel

from meshscope import probe
from meshscope.probe import clock, hooks
from meshscope.probe.compat.absent import lacks
from meshscope.probe.compat.uncompiled import leave_uncompiled
from meshscope.probe.hooks import collectives, compute
from meshscope.probe.reader.run import read_run
from meshscope.probe.recording import recorder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WIDTH = 16


class Block(nn.Module):
    """A module whose forward is compiled."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values):
        """Return what both layers make of the values."""
        return self.second(torch.relu(self.first(values)))


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Have what other tests compiled not count here."""
    torch._dynamo.reset()
    yield
    probe.detach()
    torch._dynamo.reset()


def compiled_below(make, path=None):
    """Return how many graphs and operations are compiled in six calls, with the probe or without."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    counter = CompileCounter()
    step = make(counter)
    if path is not None:
        probe.attach(path)
    for _ in range(6):
        step(torch.ones(2, WIDTH)).square().mean().backward()
    probe.detach()
    return counter.frame_count, counter.op_count


OUTSIDE = {
    "a module": lambda counter: torch.compile(Block(), backend=counter),
    "a replicated module": lambda counter: torch.compile(
        DistributedDataParallel(Block()), backend=counter
    ),
    "replicated layers of torch": lambda counter: torch.compile(
        DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())), backend=counter
    ),
    "a module to replicate": lambda counter: DistributedDataParallel(
        torch.compile(Block(), backend=counter)
    ),
}


def clipping(counter):
    """Return a module whose gradients are clipped in a compiled function."""
    module = Block()

    @torch.compile(backend=counter)
    def clip():
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)

    def step(values):
        if module.first.weight.grad is not None:
            clip()
        return module(values)

    return step


OUTSIDE["clipping"] = clipping


@pytest.mark.usefixtures("lone_world")
@pytest.mark.parametrize("what", OUTSIDE)
def test_the_same_is_compiled_with_the_probe(tmp_path, what):
    """Fails when the probe's own functions are compiled, or have more compiled than without them."""
    alone = compiled_below(OUTSIDE[what])
    assert compiled_below(OUTSIDE[what], tmp_path / "run") == alone


def a_function(counter):
    """Return a compiled function that calls a module."""
    module = Block()

    @torch.compile(backend=counter)
    def call(values):
        return module(values)

    return call


def in_place(counter):
    """Return a module that compiles itself."""
    module = Block()
    module.compile(backend=counter)
    return module


@pytest.mark.parametrize("make", [OUTSIDE["a module"], a_function, in_place])
@pytest.mark.parametrize("change", ["windows", "level"])
def test_recording_less_for_a_while_compiles_nothing_anew(tmp_path, make, change):
    """Fails when a model is compiled again, for minutes, whenever the probe records less or more."""
    counter = CompileCounter()
    step = make(counter)
    session = probe.attach(tmp_path / "run")
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    for number in range(12):
        if number % 4 == 2:
            session._hooks.pause() if change == "windows" else session.set_level("steps")
        elif number % 4 == 0:
            session._hooks.resume() if change == "windows" else session.set_level("stages")
        step(torch.ones(2, WIDTH)).square().mean().backward()
        optimizer.step()
    assert counter.frame_count == 1
    probe.detach()
    spans = read_run(tmp_path / "run").tables["span"].to_pandas()
    forward = set(spans[spans["kind"] == "backward"]["step"])
    assert 0 in forward
    assert not {2, 3, 6, 7, 10, 11} <= forward


def test_attaching_leaves_all_that_hooks_call_alone(tmp_path, monkeypatch):
    """Fails when the hooks, or what they record with, are compiled in jobs, though tests leave them alone."""
    left = WeakKeyDictionary()
    monkeypatch.setattr("meshscope.probe.compat.uncompiled._LEFT", left)
    probe.attach(tmp_path / "run")
    assert {collectives, compute, recorder, clock} <= set(left)


def test_functions_that_functions_make_are_left_alone_too():
    """Fails when the wrappers around torch, which are made when a hook is installed, are compiled."""
    skipped = leave_uncompiled(hooks.__name__)
    named = [name for name in vars(compute) if callable(vars(compute)[name])]
    assert skipped > len(named) + len(vars(collectives.CollectiveHook))


def test_what_is_left_alone_already_is_not_gone_through_again(monkeypatch):
    """Fails when each recording of a job begins with a pause for all functions of the probe."""
    before, marked = leave_uncompiled(hooks.__name__), []
    monkeypatch.setattr("meshscope.probe.compat.uncompiled.compiler_skip", lambda: marked.append)
    assert leave_uncompiled(hooks.__name__) == before
    assert marked == []


def test_a_torch_without_such_a_thing_is_said(tmp_path, monkeypatch):
    """Fails when another torch keeps the probe from recording."""

    def missing():
        raise lacks("skip_code")

    monkeypatch.setattr("meshscope.probe.compat.uncompiled.compiler_skip", missing)
    probe.attach(tmp_path / "run")
    nn.Linear(2, 2)(torch.ones(1, 2))
    probe.detach()
    capture = read_run(tmp_path / "run")
    notes = capture.rank_manifests[0]["annotations"]
    assert notes["uncompiled.missing"] == {"code": "absent.name", "values": {"name": "skip_code"}}
    assert "forward" in set(capture.tables["span"].to_pandas()["kind"])


def test_a_hook_that_costs_more_than_compiling_is_taken_out(tmp_path):
    """Fails when a model of many small modules pays for each while nothing is recorded."""
    torch.compile(lambda values: values + 1, backend="eager")(torch.ones(1))
    model = nn.Sequential(*[nn.Identity() for _ in range(2000)])
    before = nn.Module.__call__
    session = probe.attach(tmp_path / "run")
    for _ in range(200):
        model(torch.ones(1))
    session._hooks.pause()
    assert nn.Module.__call__ is before
    session._hooks.resume()
    assert nn.Module.__call__ is not before


def test_a_hook_that_was_switched_off_comes_back(tmp_path):
    """Fails when a hook that rested stays off for errors that another would have been forgiven."""
    torch.compile(Block(), backend="eager")(torch.ones(2, WIDTH))
    session = probe.attach(tmp_path / "run")
    session._hooks._installed["compute"].source.on = False
    session._hooks.pause()
    session._hooks.resume()
    assert session._hooks._installed["compute"].source.on
    nn.Linear(2, 2)(torch.ones(1, 2))
    probe.detach()
    assert "forward" in set(read_run(tmp_path / "run").tables["span"].to_pandas()["kind"])

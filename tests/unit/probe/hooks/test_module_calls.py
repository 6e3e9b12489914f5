"""How many module calls lie below a recorded one."""

import gc

import pytest
import torch
from torch import nn

from meshscope.probe.cost import CostMeter
from meshscope.probe.hooks.base import Capture
from meshscope.probe.hooks.compute import ComputeHook
from meshscope.probe.hooks.module_calls import ModuleCalls, called_modules
from meshscope.probe.recording.open_recorder import EarlyRecorder
from meshscope.probe.settings.config import ProbeConfig


class Listed(nn.Module):
    """Calls what it keeps in a list."""

    def __init__(self):
        """Keep three modules, one of them twice."""
        super().__init__()
        shared = nn.Identity()
        self.inner = nn.ModuleList([shared, nn.ReLU(), shared])

    def forward(self, value):
        """Call them."""
        for inner in self.inner:
            value = inner(value)
        return value


@pytest.mark.parametrize(
    ("module", "calls"),
    [
        (nn.Identity(), 1),
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.ReLU())), 5),
        (Listed(), 3),
    ],
)
def test_every_module_that_is_called_counts(module, calls):
    """Fails if lists of modules count as calls, or a shared module is met for ever."""
    assert called_modules(module) == calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, at its first compile
def test_below_a_compiled_or_scripted_module_nothing_is_called():
    """Fails if a compiled model, which pays no frames, is said to cost as many as one that is not."""
    inner = nn.Sequential(*[nn.ReLU() for _ in range(9)])
    assert called_modules(nn.Sequential(torch.compile(inner), nn.ReLU())) <= 3
    compiled = nn.Sequential(nn.Sequential(nn.ReLU()))
    compiled[0].compile()
    assert called_modules(compiled) == 2


def test_what_is_no_module_counts_as_one_call_and_raises_nothing():
    """Fails if an odd callable ends the training."""
    meter = CostMeter()
    calls = ModuleCalls(meter)
    for odd in (None, object(), 5):
        calls.note(odd)
    assert meter.frames == 3


def test_a_module_in_the_place_of_a_dead_one_is_counted_anew():
    """Fails if a module is taken for one that had its address before."""
    meter = CostMeter()
    calls = ModuleCalls(meter)
    for size in (1, 9, 3):
        module = nn.Sequential(*[nn.ReLU() for _ in range(size)])
        meter.frames = 0
        calls.note(module)
        assert meter.frames == size + 1
        del module
        gc.collect()


def test_frames_are_part_of_the_cost():
    """Fails if a model of many modules is said to cost as little as one of few."""
    capture = Capture(EarlyRecorder(), ProbeConfig(), lambda: None)
    hook = ComputeHook(capture)
    hook.install()
    try:
        assert capture.meter.frame_ns > 0
        nn.Sequential(*[nn.ReLU() for _ in range(99)])(torch.ones(1))
        assert capture.meter.frames == 100
        assert capture.meter.total_ns() >= 100 * capture.meter.frame_ns
    finally:
        hook.remove()

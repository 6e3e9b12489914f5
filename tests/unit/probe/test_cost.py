"""What the hooks say that they cost."""

import threading
import time

import torch

from meshscope.probe.config import ProbeConfig
from meshscope.probe.cost import COST_OVER_SEEN, ONE_IN, CostMeter
from meshscope.probe.hooks.base import Capture
from meshscope.probe.hooks.steps import StepHook
from meshscope.probe.recording.early import EarlyRecorder


def test_every_kind_of_cost_is_in_the_sum():
    """Fails if sampled calls, borders or frames are left out of what a budget is held against."""
    meter = CostMeter()
    meter.add("span", 1000)
    meter.add_border(5000)
    meter.frame_ns, meter.frames = 100, 7
    assert meter.total_ns() == COST_OVER_SEEN * (ONE_IN * 1000 + 5000 + 700)


class SlowMemory:
    """Takes CPU time, or only waits, at every sample."""

    def __init__(self, act):
        """Do this."""
        self.sample = lambda *_: act()


def border_ns(act):
    """Return the cost of one step in which each sample of memory does something."""
    capture = Capture(EarlyRecorder(), ProbeConfig(), lambda: None)
    hook = StepHook(capture, SlowMemory(act), ())
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    hook._before(optimizer, (), {})
    before_ns = capture.meter.total_ns()
    hook._after(optimizer, (), {})
    return before_ns, capture.meter.total_ns() - before_ns


def burn():
    """Use 5 ms of this thread's CPU time."""
    end = time.thread_time_ns() + 5_000_000
    while time.thread_time_ns() < end:
        pass


def test_the_sample_before_an_optimizer_is_counted():
    """Fails if reading memory before ``optimizer.step()`` costs nothing by the probe's own account."""
    before_ns, after_ns = border_ns(burn)
    assert before_ns >= 5_000_000
    assert after_ns >= 10_000_000


def test_a_thread_that_waits_for_a_cpu_at_a_border_costs_nothing():
    """Fails if a busy host has the probe lower its level for nothing."""
    before_ns, after_ns = border_ns(lambda: threading.Event().wait(0.05))
    assert before_ns + after_ns < 20_000_000

"""Windows with and without the probe in one job."""

import time

from meshscope.probe.clock import thread_cpu_ns
from meshscope.probe.cost import COST_OVER_SEEN, CostMeter
from meshscope.probe.session.comparison import Comparison, is_watched

WINDOW_STEPS = 5
BURNT_NS = 5_000_000


class Hooks:
    """Take 5 ms of CPU time to be put in or out."""

    def __init__(self):
        self.calls = []

    def pause(self):
        """Note it, and take the time."""
        self._burn("pause")

    def resume(self):
        """Note it, and take the time."""
        self._burn("resume")

    def _burn(self, name):
        self.calls.append(name)
        end = time.thread_time_ns() + BURNT_NS
        while time.thread_time_ns() < end:
            pass


def test_changing_windows_is_no_cost_of_the_hooks():
    """Fails when `doctor --overhead` counts what only its comparison takes as overhead of a run."""
    hooks, meter = Hooks(), CostMeter()
    comparison = Comparison(hooks, meter, "run", WINDOW_STEPS)
    for step in range(8 * WINDOW_STEPS):
        begin_ns = thread_cpu_ns()
        comparison.at_border(step)
        meter.add_border(thread_cpu_ns() - begin_ns)
    assert len(hooks.calls) >= 4
    assert meter.total_ns() < COST_OVER_SEEN * BURNT_NS


def test_one_window_of_each_pair_is_watched():
    """Fails when both windows of a pair are alike, so that nothing can be compared."""
    for pair in range(20):
        step = 2 * pair * WINDOW_STEPS
        both = {is_watched("run", step + own * WINDOW_STEPS, WINDOW_STEPS) for own in (0, 1)}
        assert both == {True, False}

"""A process that trains is found by its optimizer, and nothing is left behind."""

import pytest
import torch
from torch.optim import optimizer as home

from meshscope.probe.watches.imports import ImportWatch
from meshscope.probe.watches.job_watch import OptimizerWatch


class Told:
    """Keeps the errors that it is told about."""

    def __init__(self):
        self.errors = []

    def failed(self, error):
        """Keep one."""
        self.errors.append(error)


def optimizer():
    """Return one that has a weight to change."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight], lr=1.0)


@pytest.fixture(autouse=True)
def _no_hook_stays():
    """Every hook that a test has brought must be gone."""
    before = dict(home._global_optimizer_pre_hooks)
    yield
    assert dict(home._global_optimizer_pre_hooks) == before


def test_the_first_step_is_reported_once_before_the_weights_change():
    """Fails when a job of one process is missed, or attached to at each step."""
    seen, trained = [], optimizer()
    weight = trained.param_groups[0]["params"][0]
    OptimizerWatch(lambda: seen.append(weight.item()), Told()).start(ImportWatch())
    assert seen == []
    for _ in range(3):
        trained.step()
    optimizer().step()
    assert seen == [0.0]


def test_hooks_may_be_added_by_whoever_is_reported():
    """Fails when torch walks over the hooks that the probe adds: it would raise into the step."""
    handles, trained = [], optimizer()

    def add():
        handles.append(home.register_optimizer_step_pre_hook(lambda *_: None))
        handles.append(home.register_optimizer_step_post_hook(lambda *_: None))

    theirs = home.register_optimizer_step_pre_hook(lambda *_: None)
    watch, reported = OptimizerWatch(add, Told()), Told()
    watch.start(ImportWatch())
    try:
        trained.step()
        trained.step()
    finally:
        for handle in (*handles, theirs):
            handle.remove()
    watch.let_go()
    assert len(handles) == 2
    assert not reported.errors
    assert not trained._optimizer_step_pre_hooks


def test_an_error_of_ours_does_not_reach_the_training():
    """Fails when a capture that cannot begin ends the job."""
    reported, trained = Told(), optimizer()
    OptimizerWatch(lambda: 1 / 0, reported).start(ImportWatch())
    trained.step()
    trained.step()
    assert [type(error) for error in reported.errors] == [ZeroDivisionError]


def test_one_that_was_stopped_tells_nobody():
    """Fails when a rank that was attached by its group is attached again as rank 0 of 1."""
    seen = []
    watch = OptimizerWatch(lambda: seen.append(1), Told())
    watch.start(ImportWatch())
    watch.stop()
    optimizer().step()
    assert seen == []

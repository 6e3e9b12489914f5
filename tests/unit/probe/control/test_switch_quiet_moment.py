"""Hooks go in and out of a running training without its noticing."""

import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from meshscope.probe.control.main_thread import MainThreadJob
from meshscope.probe.control.switch import RecordingSwitch, State, hooks_may_change

PATIENCE_S = 60


@contextmanager
def hooks_of_ours():
    """Register what the probe registers for all optimizers."""
    handles = [
        register_optimizer_step_pre_hook(lambda *_: None),
        register_optimizer_step_post_hook(lambda *_: None),
    ]
    yield
    for handle in handles:
        handle.remove()


@pytest.fixture
def optimizer():
    """Return an optimizer of one weight."""
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def spin_until(condition):
    """Run Python in the main thread until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("place", "may"), [("every pre", False), ("own pre", False), ("step", True), ("post", False)]
)
def test_a_walk_over_hooks_of_optimizers_is_left_alone(optimizer, place, may):
    """Fails when a training ends because hooks change while torch walks over them."""
    looks, ran, inside = [], [], ExitStack()

    def may_run():
        looks.append(hooks_may_change())
        return looks[-1]

    def train_on(*_):
        job = MainThreadJob(lambda: ran.append(inside.enter_context(hooks_of_ours())), may_run)
        threading.Thread(target=lambda: job.post() and job.wait(PATIENCE_S), daemon=True).start()
        spin_until(lambda: looks)
        assert (looks[0], bool(ran)) == (may, may)

    places = {
        "every pre": lambda: register_optimizer_step_pre_hook(train_on),
        "own pre": lambda: optimizer.register_step_pre_hook(train_on),
        "post": lambda: register_optimizer_step_post_hook(train_on),
    }
    with inside:
        handle = places[place]() if place in places else None
        try:
            optimizer.step(train_on if place == "step" else None)
        finally:
            if handle is not None:
                handle.remove()
        spin_until(lambda: ran)


def test_a_search_for_a_module_is_left_alone():
    """Fails when an import of the training finds nothing because a finder goes meanwhile."""
    looks = []

    class Finder:
        """Looks whether hooks may change while a search goes on."""

        def find_spec(self, *_):
            looks.append(hooks_may_change())

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        with pytest.raises(ModuleNotFoundError):
            __import__("no_module_of_this_name")
    finally:
        sys.meta_path.remove(finder)
    assert looks == [False]
    assert hooks_may_change()


class Hooks:
    """A recording that is nothing but hooks."""

    run_path, rank, coverage = None, 0, {}

    def hook(self):
        """Register them."""
        self.inside = ExitStack()
        self.inside.enter_context(hooks_of_ours())

    def unhook(self):
        """Remove them."""
        self.inside.close()

    def prepare(self):
        """Open nothing."""

    finish = mute = prepare


def test_training_goes_on_while_hooks_come_and_go(optimizer):
    """Fails when attaching to a job at an unlucky moment raises in its training."""
    others = [
        register(lambda *_: time.sleep(0.0001))
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
        for _ in range(2)
    ]
    switch, ended = RecordingSwitch(Hooks, lambda _: None), threading.Event()

    def cycle():
        for _ in range(2):
            switch.turn_on(PATIENCE_S)
            switch.turn_off(PATIENCE_S)
        ended.set()

    threading.Thread(target=cycle, daemon=True).start()
    try:
        spin_until(lambda: optimizer.step() or ended.is_set())
    finally:
        for handle in others:
            handle.remove()
    assert (switch.state, switch.error) == (State.OFF, "")

"""Least times of the parts of the model, with a clock that only sleeping moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from meshscope.reference_trainer.config.config import PaceConfig
from meshscope.reference_trainer.model import pace
from meshscope.reference_trainer.model.activation_memory import ActivationRunner


class FakeTime:
    """A clock that sleeping and the test move."""

    def __init__(self):
        self.time_ns = 0
        self.slept_ns = []

    def now(self):
        """Return the time."""
        return self.time_ns

    def sleep(self, seconds):
        """Move on."""
        self.slept_ns.append(round(seconds * 1e9))
        self.time_ns += self.slept_ns[-1]


class Work(nn.Module):
    """Doubles its input, in 3 ms forward and 4 ms backward."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def forward(self, tensor):
        """Work for 3 ms; the hook works for 4 ms in the backward."""
        self.clock.time_ns += 3_000_000
        output = tensor * 2.0
        if output.requires_grad:
            output.register_hook(self.work_backward)
        return output

    def work_backward(self, grad):
        """Work for 4 ms."""
        self.clock.time_ns += 4_000_000
        return grad


class KeepingWork(Work):
    """Needs its input in the backward."""

    def forward(self, tensor):
        """Work for 3 ms."""
        return super().forward(tensor) * tensor


@pytest.fixture
def clock(monkeypatch):
    """Put the fake clock in place of the real one."""
    fake = FakeTime()
    monkeypatch.setattr(pace, "now_ns", fake.now)
    monkeypatch.setattr(pace.time, "sleep", fake.sleep)
    return fake


def test_a_layer_sleeps_for_the_rest_of_its_time_and_twice_that_backward(clock):
    """Fails if a paced layer takes another time than configured, or changes values."""
    paced = pace.Pace(PaceConfig(layer_ms=10.0), lambda: 0)
    hidden = torch.ones(2, requires_grad=True)
    output = paced.layer(Work(clock), hidden)
    assert clock.slept_ns == [7_000_000]
    output.sum().backward()
    assert clock.slept_ns == [7_000_000, 16_000_000]
    assert output.tolist() == [2.0, 2.0]
    assert hidden.grad.tolist() == [2.0, 2.0]


def test_work_beyond_the_pace_is_not_slowed(clock):
    """Fails if the pace delays a part that is slower than it."""
    paced = pace.Pace(PaceConfig(layer_ms=2.0), lambda: 0)
    paced.layer(Work(clock), torch.ones(2, requires_grad=True)).sum().backward()
    assert clock.slept_ns == []


def test_waiting_for_others_does_not_count_as_the_parts_own_work(clock):
    """Fails if a rank that waited for its peer computes less than its share."""
    waited = iter([0, 2_000_000])
    paced = pace.Pace(PaceConfig(layer_ms=10.0), lambda: next(waited))
    paced.layer(Work(clock), torch.ones(2))
    assert clock.slept_ns == [9_000_000]


def test_the_embedding_sleeps_without_an_input_gradient(clock):
    """Fails if the backward of the first part is free, since ids have no gradient."""
    paced = pace.Pace(PaceConfig(embed_ms=5.0), lambda: 0)
    embedding = nn.Embedding(4, 2)
    output = paced.embed(embedding, torch.tensor([1]))
    output.sum().backward()
    assert clock.slept_ns == [5_000_000, 10_000_000]
    assert embedding.weight.grad is not None


def test_a_repeated_forward_makes_the_backward_longer(clock):
    """Fails if recomputation is free in a paced run."""
    paced = pace.Pace(PaceConfig(layer_ms=10.0), lambda: 0, recompute_frac=1.0)
    runner = ActivationRunner(paced, full=True, store=None)
    output = runner.layer(KeepingWork(clock), torch.ones(2, requires_grad=True))
    assert clock.time_ns == 10_000_000
    output.sum().backward()
    assert clock.time_ns == 10_000_000 + 30_000_000


def test_under_a_split_backward_each_half_takes_one_forward(clock):
    """Fails if a schedule that splits its backwards is emulated with other times than it says."""
    config = PaceConfig(layer_ms=10.0, head_ms=5.0)
    paced = pace.Pace(config, lambda: 0, splits_backward=True)
    output = paced.layer(Work(clock), torch.ones(2, requires_grad=True))
    output.sum().backward()
    assert clock.slept_ns == [7_000_000, 6_000_000]
    weights = pace.WeightPace(config, 2, (False, True), lambda: 0)
    with weights.weights(0):
        clock.time_ns += 4_000_000
    with weights.whole_backward(0):
        clock.time_ns += 4_000_000
    assert clock.slept_ns[2:] == [21_000_000, 46_000_000]


def test_the_weights_half_follows_the_work_of_its_microbatch(clock):
    """Fails if uneven sequences are uneven in one half of a split backward only."""
    config = PaceConfig(layer_ms=10.0, head_ms=5.0)
    works = [0.5, 2.0]
    weights = pace.WeightPace(config, 2, (False, True), lambda: 0, works.__getitem__)
    for microbatch in (0, 1):
        with weights.weights(microbatch):
            clock.time_ns += 1_000_000
        with weights.whole_backward(microbatch):
            clock.time_ns += 1_000_000
    # Two blocks by the work of the microbatch, and the head, which every token passes.
    assert clock.slept_ns == [14_000_000, 29_000_000, 44_000_000, 89_000_000]


def test_what_a_fault_adds_comes_on_top_of_the_pace(clock):
    """Fails if added time is taken for compute, so that less is added than the truth says."""
    added_ns = 0
    weights = pace.WeightPace(PaceConfig(layer_ms=10.0), 1, (False, False), lambda: added_ns)
    with weights.whole_backward(0):
        clock.time_ns += 4_000_000
        clock.sleep(0.06)
        added_ns = 60_000_000
    assert clock.time_ns == 80_000_000

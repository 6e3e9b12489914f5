"""Buckets of gradients, and when their reduction starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.data_parallel import GradientReducer


@pytest.fixture
def model():
    """Return four layers of 16 x 16 weights (1,024 bytes each)."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4)))


def reducer_of(model, group, comm, *, backwards=2, bucket_bytes=2048):
    """Return a reducer over the model's parameters."""
    group = replace(group, axis=Axis.DP)
    return GradientReducer(
        model.parameters(), group, comm, backwards=backwards, bucket_bytes=bucket_bytes
    )


def test_buckets_start_in_the_last_backward_and_not_before(model, comm, group_of_two):
    """Fails if gradients are summed before they are complete, or only after backward."""
    reducer = reducer_of(model, group_of_two, comm)
    reducer.start_step()
    model(torch.randn(3, 16)).sum().backward()
    assert comm.issued == 0
    seen = []
    model[0].register_full_backward_pre_hook(lambda *_: seen.append(comm.issued))
    model(torch.randn(3, 16, requires_grad=True)).sum().backward()
    assert reducer.bucket_count == 2
    assert seen == [1], "the last layers' bucket must be on its way during backward"
    assert comm.issued == 2
    reducer.finish()


def test_gradients_of_all_backwards_add_up_and_start_from_zero(model, comm, alone):
    """Fails if a microbatch's gradient is lost, or one step leaks into the next."""
    inputs = torch.randn(4, 16)
    model(inputs).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    reducer = reducer_of(model, alone, comm)
    for _ in range(2):
        reducer.start_step()
        for half in inputs.chunk(2):
            model(half).sum().backward()
        reducer.finish()
        for parameter, grad in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, grad)


def test_a_gradient_larger_than_a_bucket_gets_its_own(model, comm, alone):
    """Fails if a large layer cannot be trained with a small bucket size."""
    assert reducer_of(model, alone, comm, bucket_bytes=100).bucket_count == 4


def test_a_missing_backward_is_an_error_and_not_a_wrong_sum(model, comm, alone):
    """Fails if the optimizer would run on gradients that were never reduced."""
    reducer = reducer_of(model, alone, comm)
    reducer.start_step()
    model(torch.randn(3, 16)).sum().backward()
    with pytest.raises(RuntimeError, match="2 of 2 gradient buckets are incomplete"):
        reducer.finish()

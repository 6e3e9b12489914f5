"""Buckets of gradients, and when their reduction starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.replica.data_parallel import GradientReducer, ReductionPlan
from meshscope.reference_trainer.replica.gradient_wire import ExactWire, split_into_buckets
from meshscope.reference_trainer.replica.memory_account import tensor_bytes


@pytest.fixture
def model():
    """Return four layers of 16 x 16 weights (1,024 bytes each)."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4)))


def reducer_of(
    model, group, comm, *, zero=0, hooked=True, bucket_bytes=2048, shared=(), backwards=2, **plan
):
    """Return a reducer over the model's parameters."""
    group = replace(group, axis=Axis.DP)
    parts = group.size if zero else 1
    buckets = split_into_buckets(model.parameters(), bucket_bytes, parts=parts)
    made = ReductionPlan(backwards=backwards, zero=zero, hooked=hooked, **plan)
    return GradientReducer(buckets, group, ExactWire(group, comm), made, shared)


def test_buckets_start_in_the_last_backward_and_not_before(model, comm, group_of_two):
    """Fails if gradients are summed before they are complete, or only after backward."""
    reducer = reducer_of(model, group_of_two, comm)
    reducer.start_step()
    model(torch.randn(3, 16)).sum().backward()
    assert comm.issued == 0
    seen = []
    model[0].register_full_backward_pre_hook(lambda *_: seen.append(comm.issued))
    model(torch.randn(3, 16, requires_grad=True)).sum().backward()
    assert reducer.launches_per_step == 2
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


def test_a_missing_backward_is_an_error_and_not_a_wrong_sum(model, comm, alone):
    """Fails if the optimizer would run on gradients that were never reduced."""
    reducer = reducer_of(model, alone, comm)
    reducer.start_step()
    model(torch.randn(3, 16)).sum().backward()
    with pytest.raises(RuntimeError, match="2 of 2 gradient buckets are incomplete"):
        reducer.finish()


def test_gradients_that_are_marked_as_final_start_without_hooks(model, comm, group_of_two):
    """Fails if a schedule that splits its backwards cannot start the reduction of a stage."""
    reducer = reducer_of(model, group_of_two, comm, hooked=False)
    reducer.start_step()
    reducer.mark_final(model[3].parameters())
    assert comm.issued == 0, "its bucket waits for the other member"
    reducer.mark_final(model[2].parameters())
    assert comm.issued == 1
    reducer.mark_final(model.parameters())
    assert comm.issued == 2
    reducer.finish()


def test_a_later_bucket_never_starts_before_an_earlier_one(model, comm, group_of_two):
    """Fails if ranks whose gradients are ready in another order would deadlock."""
    reducer = reducer_of(model, group_of_two, comm)
    reducer.start_step()
    reducer.mark_final([*model[0].parameters(), *model[1].parameters()])
    assert comm.issued == 0
    reducer.mark_final([*model[2].parameters(), *model[3].parameters()])
    assert comm.issued == 2
    reducer.finish()


def test_what_two_stages_share_is_final_only_when_reported(model, comm, group_of_two):
    """Fails if a tied weight is reduced before the second stage has added to it."""
    shared = model[3].weight
    reducer = reducer_of(model, group_of_two, comm, shared=[shared])
    reducer.start_step()
    for _ in range(2):
        model(torch.randn(3, 16)).sum().backward()
    assert comm.issued == 0
    reducer.mark_final([shared])
    assert comm.issued == 2
    reducer.finish()


@pytest.mark.parametrize(
    ("zero", "hooked", "scatters"), [(1, True, 2), (2, True, 4), (2, False, 2)]
)
def test_sharded_sums_are_reduce_scattered(model, comm, group_of_two, zero, hooked, scatters):
    """Fails if a ZeRO stage sends whole sums, or another number of messages than it states."""
    reducer = reducer_of(model, group_of_two, comm, zero=zero, hooked=hooked)
    reducer.start_step()
    for _ in range(2):
        model(torch.randn(3, 16)).sum().backward()
    reducer.mark_final(model.parameters())
    reducer.finish()
    assert reducer.launches_per_step == scatters
    assert comm.collectives == {("reduce_scatter", Axis.DP): scatters}
    assert [len(part) for part in reducer.sums] == [256, 256]


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_gradients_kept_in_bf16_are_off_by_their_roundings_at_most(model, comm, alone, zero):
    """Fails if bf16 buckets lose more than a rounding for each sum of two, or are fp32 after all."""
    model, microbatches = model.bfloat16(), torch.randn(6, 3, 16, dtype=torch.bfloat16)
    singles = []
    for one in microbatches:
        model.zero_grad()
        model(one).sum().backward()
        singles.append([p.grad.double().flatten() for p in model.parameters()][::-1])
        model.zero_grad()
    each = torch.stack([torch.cat(grads) for grads in singles])
    reducer = reducer_of(model, alone, comm, zero=zero, backwards=6, dtype=torch.bfloat16)
    reducer.start_step()
    for one in microbatches:
        model(one).sum().backward()
    reducer.finish()
    assert {kept.dtype for kept in reducer.held} == {torch.bfloat16}
    off = (torch.cat(reducer.sums).double() - each.sum(dim=0)).abs()
    assert (off <= ((1 + 2.0**-8) ** 5 - 1) * each.abs().sum(dim=0)).all()
    assert off.max() > 0


def test_a_sharded_sum_takes_the_place_of_its_summand(model, comm, alone):
    """Fails if ZeRO 1 holds its part of the sums besides the buckets, or adds it to its own."""
    inputs = torch.randn(4, 16)
    model(inputs).sum().backward()
    expected = [parameter.grad.flatten() for parameter in model.parameters()][::-1]
    reducer = reducer_of(model, alone, comm, zero=1)
    reducer.start_step()
    for half in inputs.chunk(2):
        model(half).sum().backward()
    reducer.finish()
    torch.testing.assert_close(torch.cat(reducer.sums), torch.cat(expected))
    assert tensor_bytes(reducer.held) == 4 * 16 * 16 * 4


def test_sharded_gradients_leave_no_whole_ones_behind(model, comm, alone):
    """Fails if ZeRO 2 keeps the memory that it is chosen to save, or sums wrongly."""
    inputs = torch.randn(4, 16)
    model(inputs).sum().backward()
    expected = [parameter.grad.flatten() for parameter in model.parameters()][::-1]
    for parameter in model.parameters():
        parameter.grad = None
    reducer = reducer_of(model, alone, comm, zero=2)
    for _ in range(2):
        reducer.start_step()
        for half in inputs.chunk(2):
            model(half).sum().backward()
        reducer.finish()
        assert all(parameter.grad is None for parameter in model.parameters())
        assert tensor_bytes(reducer.held) == 4 * 16 * 16 * 4
        torch.testing.assert_close(torch.cat(reducer.sums), torch.cat(expected))


def test_gradients_of_bf16_weights_add_up_in_fp32(comm, alone):
    """Fails if small gradients of later microbatches are lost beside a large first one."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).bfloat16()
    reducer = reducer_of(model, alone, comm)
    reducer.start_step()
    for value in (256.0, 0.5):
        model(torch.tensor([[value]], dtype=torch.bfloat16)).sum().backward()
    reducer.finish()
    assert reducer.sums[0].tolist() == [256.5]

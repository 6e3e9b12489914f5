"""fp32 masters and the flat weights of the model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.replica.gradient_wire import split_into_buckets
from meshscope.reference_trainer.replica.optimizer import MasterWeights


def masters_of(model, group, comm, *, dtype=torch.float32, sharded=True):
    """Return the masters of a model in one bucket."""
    group = replace(group, axis=Axis.DP)
    buckets = split_into_buckets(model.parameters(), 1 << 20, parts=group.size if sharded else 1)
    return MasterWeights(buckets, group, comm, dtype=dtype, sharded=sharded)


def test_the_weights_of_the_model_do_not_change_by_moving(comm, alone):
    """Fails if flattening mixes up parameters or their values."""
    model = nn.Linear(3, 5)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    masters_of(model, alone, comm)
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


def test_a_master_in_fp32_is_its_part_of_the_weights(comm, group_of_two):
    """Fails if sharded fp32 training keeps a second copy, or updates the wrong half."""
    model = nn.Linear(1, 2)
    masters = masters_of(model, replace(group_of_two, position=1), comm)
    assert not masters.copies
    with torch.no_grad():
        masters.masters[0].fill_(7.0)
    # The buffer is bias, then weight; the second half is the weight.
    assert model.weight.flatten().tolist() == [7.0, 7.0]
    assert 7.0 not in model.bias.tolist()


def test_small_updates_of_bf16_weights_are_kept_in_the_masters(comm, alone):
    """Fails if updates below the resolution of bf16 are lost for good."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    masters = masters_of(model, alone, comm, dtype=torch.bfloat16, sharded=False)
    optimizer = torch.optim.SGD(masters.masters, lr=1.0)
    for _ in range(8):
        masters.take_gradients([torch.full((1,), -(2.0**-10))])
        optimizer.step()
        masters.publish()
    assert model.weight.dtype == torch.bfloat16
    assert masters.masters[0].item() == 1 + 2.0**-7
    assert model.weight.item() == 1 + 2.0**-7, "bf16 alone rounds each 1 + 2^-10 to 1"
    assert [master.nbytes for master in masters.copies] == [4]


def test_only_sharded_masters_are_gathered(comm, group_of_two):
    """Fails if whole masters cost communication, or parts are never sent."""
    masters_of(nn.Linear(2, 2), group_of_two, comm, sharded=False).publish()
    assert comm.collectives == {}
    masters = masters_of(nn.Linear(2, 2), group_of_two, comm)
    masters.publish()
    masters.settle()
    assert comm.collectives == {("all_gather", Axis.DP): 1}

"""What torch itself holds of operations and groups."""

import pytest
import torch
import torch.distributed as dist

from meshscope.probe.compat.works import process_group_named, recorded_operations


@pytest.fixture
def group():
    """Return the group of a job of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_the_recorder_of_torch_holds_what_was_issued(group):
    """A torch that keeps these entries otherwise would leave the end of a job unknown, without a word."""
    dist.all_reduce(torch.ones(1237))
    dist.broadcast(torch.ones(5, dtype=torch.float64), 0)
    reduced, sent = recorded_operations()[-2:]
    assert reduced["process_group"][0] == group.group_name
    assert (reduced["input_sizes"], reduced["profiling_name"]) == ([[1237]], "gloo:all_reduce")
    assert (sent["input_dtypes"], sent["is_p2p"]) == (["Double"], False)
    assert sent["collective_seq_id"] == reduced["collective_seq_id"] + 1


def test_a_group_is_found_by_its_name(group):
    """A group without an operation so far would have no id, and its first mismatch would be lost."""
    assert process_group_named(group.group_name) is group
    assert process_group_named("nobody") is None

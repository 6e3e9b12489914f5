"""Which operations go through host memory, and what they are on the way."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.config.sections import DeviceConfig
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.host_staging import (
    OPERATIONS,
    StagedMessages,
    StagedWork,
    staged_operations,
)


@pytest.mark.parametrize(
    ("settings", "staged"),
    [
        ({"kind": "cpu", "backend": "gloo"}, set()),
        ({"kind": "cuda", "backend": "nccl"}, set()),
        ({"kind": "cuda", "backend": "gloo"}, OPERATIONS - {"all_reduce"}),
        ({"kind": "cpu", "backend": "gloo", "staging": "always"}, OPERATIONS),
    ],
)
def test_what_is_staged_follows_from_backend_and_device(settings, staged):
    """Fails if gloo gets a GPU's memory that it cannot move, or host memory is copied for nothing."""
    assert staged_operations(DeviceConfig(**settings)) == staged


def test_a_slow_link_needs_all_operations_of_a_gpu_in_host_memory():
    """Fails if gloo's own sums of a GPU's memory, which nothing can hold back, pass a slow link."""
    for kind, staged in (("cuda", OPERATIONS), ("cpu", frozenset())):
        device = DeviceConfig(kind=kind, backend="gloo")
        assert staged_operations(device, held_back=True) == staged


def test_nccl_cannot_be_staged():
    """Fails if a setting that has no effect is taken."""
    with pytest.raises(ConfigError, match=r"device\.staging: .*Set it to auto"):
        DeviceConfig(kind="cuda", backend="nccl", staging="always")


def test_staged_collectives_run_on_host_copies_and_deliver_when_waited_for(group_of_two):
    """Fails if an operation is not staged, or its result is there before, or not after, the wait."""
    comm = Communicator(PerfectLinks(), {"all_reduce"})
    tensor = torch.ones(3)
    pending = comm.all_reduce(tensor, group_of_two)
    assert isinstance(pending.work, StagedWork)
    tensor.zero_()
    pending.wait()
    # The other member is not there: what comes back is the copy that was sent.
    assert tensor.tolist() == [1, 1, 1]
    _, gathered = comm.all_gather(tensor, group_of_two)
    assert not isinstance(gathered.work, StagedWork)
    gathered.wait()


def test_every_collective_can_be_staged(group_of_two):
    """Fails if a staged operation hands over its tensors in another order than a direct one."""
    staged = Communicator(PerfectLinks(), OPERATIONS)
    direct = Communicator(PerfectLinks())
    for comm in (staged, direct):
        for pending in (
            comm.all_reduce(torch.ones(4), group_of_two, op=dist.ReduceOp.MAX),
            comm.all_gather(torch.ones(2, 3), group_of_two)[1],
            comm.reduce_scatter(torch.ones(2, 3), group_of_two)[1],
            comm.all_to_all(torch.ones(4, 3), group_of_two)[1],
            comm.all_to_all(torch.ones(4, 3), group_of_two, sent_rows=[1, 3], received_rows=[2, 2])[
                1
            ],
        ):
            assert isinstance(pending.work, StagedWork) == (comm is staged)
            pending.wait()
    assert staged.payload_bytes == direct.payload_bytes


def test_messages_are_staged_whoever_sends_them_until_that_is_taken_back(group_of_two):
    """Fails if torch's own sends escape the staging, or stay staged after a run."""
    messages = StagedMessages("cpu")
    messages.install()
    try:
        buffer = torch.zeros(2, requires_grad=True)
        received = dist.irecv(buffer, 1, group_of_two.handle)
        sent = dist.isend(torch.ones(2, requires_grad=True), 1, group_of_two.handle)
        assert isinstance(received, StagedWork)
        assert isinstance(sent, StagedWork)
        received.wait()
        sent.wait()
    finally:
        messages.remove()
    after = dist.isend(torch.ones(2), 1, group_of_two.handle)
    assert not isinstance(after, StagedWork)
    after.wait()

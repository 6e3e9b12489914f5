"""Collectives: how long they are waited for."""

from __future__ import annotations

import torch

from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks


def test_waits_are_counted_and_a_group_of_one_never_waits(alone, group_of_two):
    """Fails if the pace would take communication for compute."""
    comm = Communicator(PerfectLinks())
    pending = comm.all_reduce(torch.ones(2), alone)
    pending.wait()
    assert comm.waited_ns == 0
    pending = comm.all_reduce(torch.ones(2), group_of_two)
    pending.wait()
    once_ns = comm.waited_ns
    assert once_ns > 0
    pending.wait()
    assert comm.waited_ns == once_ns

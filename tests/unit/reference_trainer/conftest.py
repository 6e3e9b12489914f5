"""Pieces of a mesh that need no second process."""

from __future__ import annotations

from collections import Counter

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import MeshGroup


class CountingCommunicator(Communicator):
    """Counts the exchanges that it issues, by kind and together."""

    def __init__(self):
        super().__init__(PerfectLinks())
        self.counts = Counter()

    @property
    def issued(self):
        """Return how many were issued."""
        return self.counts.total()

    def all_reduce(self, tensor, group, **options):
        """Issue and count."""
        self.counts["all_reduce"] += 1
        return super().all_reduce(tensor, group, **options)

    def all_gather(self, shard, group):
        """Issue and count."""
        self.counts["all_gather"] += 1
        return super().all_gather(shard, group)

    def reduce_scatter(self, whole, group):
        """Issue and count."""
        self.counts["reduce_scatter"] += 1
        return super().reduce_scatter(whole, group)

    def all_to_all(self, sent, group, **rows):
        """Issue and count."""
        self.counts["all_to_all"] += 1
        return super().all_to_all(sent, group, **rows)

    def pass_on(self, tensor, group):
        """Issue and count."""
        self.counts["pass_on"] += 1
        return super().pass_on(tensor, group)


@pytest.fixture
def comm():
    """Return a communicator that counts."""
    return CountingCommunicator()


@pytest.fixture
def alone():
    """Return a group of this process only, in which nothing is communicated."""
    return MeshGroup(axis=Axis.TP, ranks=(0,), position=0, handle=None)


@pytest.fixture
def group_of_two():
    """Return a group whose other member is not there: collectives return what they got."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield MeshGroup(axis=Axis.TP, ranks=(0, 1), position=0, handle=dist.group.WORLD)
    dist.destroy_process_group()

"""Links that complete operations late: which operations, by how much, and counted from when."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from meshscope.probe.clock import now_ns
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer import compat
from meshscope.reference_trainer.config.fault_plan import parse_fault, resolve
from meshscope.reference_trainer.faults.faults import FaultInjector
from meshscope.reference_trainer.faults.ground_truth import GroundTruth
from meshscope.reference_trainer.faults.slow_link import Delay, LateWork, Operation, SlowOperators

LAYOUT = ParallelLayout(tp=2, dp=2)
"""Ranks 0 1 | 2 3 along tp, 0 2 | 1 3 along dp."""


class Transfer(dist.Work):
    """Takes some time, and then fails if it is to."""

    def __init__(self, takes_s, error=None):
        super().__init__()
        self.takes_s, self.error = takes_s, error

    def wait(self):
        """Return at the end."""
        time.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        return True


def links_of(text, rank, layout=LAYOUT):
    """Return the links of a rank under one always-active fault."""
    fault = resolve(parse_fault(text), layout, seed=0)
    injector = FaultInjector([fault], layout, rank, GroundTruth(None, rank, [fault]))
    injector.begin_step(0)
    return injector.links


def is_slow(links, axis, ranks, sender=None):
    """Return whether an operation completes late."""
    return links.delay(Operation(axis, ranks, 1000, sender)) is not None


def test_a_slow_link_holds_its_group_on_its_axis_only():
    """Fails if a member escapes the slow link, or others are slowed as well."""
    groups = [(0, 1), (0, 1), (2, 3), (2, 3)]
    links = [links_of("slow_link:rank=0,axis=tp,delay_ms=1", rank) for rank in range(4)]
    slow = [is_slow(own, Axis.TP, group) for own, group in zip(links, groups, strict=True)]
    assert slow == [True, True, False, False]
    assert not is_slow(links[0], Axis.DP, (0, 2))


def test_all_members_of_a_collective_over_a_slow_group_are_held():
    """Fails if some ranks of a sum over more than the slow group leave before the others."""
    for rank in range(4):
        links = links_of("slow_link:rank=0,axis=dp,delay_ms=1", rank)
        assert is_slow(links, Axis.DP, (0, 1, 2, 3))
    copies = ParallelLayout(dp=4)
    for rank, part in ((0, (0, 1)), (3, (2, 3)), (3, (1, 3))):
        links = links_of("slow_link:rank=0,axis=dp,delay_ms=1", rank, copies)
        assert is_slow(links, Axis.DP, part)


def test_a_link_of_two_peers_slows_their_messages_and_the_collectives_that_both_are_in():
    """Fails if a message between others is late, or a collective that spares the link."""
    layout = ParallelLayout(pp=4)
    text, group = "slow_link:rank=1,peer=2,axis=pp,delay_ms=1", (0, 1, 2, 3)
    late = {
        (sender, rank)
        for rank in range(4)
        for sender in range(4)
        if is_slow(links_of(text, rank, layout), Axis.PP, group, sender)
    }
    assert late == {(1, 2), (2, 1)}
    assert is_slow(links_of(text, 0, layout), Axis.PP, group)
    assert not is_slow(links_of(text, 0, layout), Axis.PP, (0, 3))


def test_latency_and_the_time_of_the_payload_add_up_for_the_first_operations_of_a_step():
    """Fails if the bandwidth is left out, or an operation behind the first ones is late too."""
    links = links_of("slow_link:rank=0,axis=tp,delay_ms=2,bytes_per_s=1e6,first=2", 0)
    delays = [links.delay(Operation(Axis.TP, (0, 1), 3000, None)) for _ in range(3)]
    assert [delay and delay.dur_ns for delay in delays] == [5_000_000, 5_000_000, None]
    links.begin_step()
    assert is_slow(links, Axis.TP, (0, 1))


def test_the_delay_counts_from_the_completion_of_the_transfer():
    """Fails if a member that came early is let go before the link has had its time."""
    spans: list[tuple[int, int]] = []
    issue_ns = now_ns()
    late = LateWork(Transfer(0.03), Delay(20_000_000, spans.append))
    assert not late.is_completed()
    assert late.wait()
    assert now_ns() - issue_ns >= 50_000_000
    ((start_ns, end_ns),) = spans
    assert start_ns - issue_ns >= 30_000_000
    assert end_ns - start_ns >= 20_000_000


def test_a_peer_that_is_gone_is_heard_of():
    """Fails if a rank goes on, or waits for ever, when the peer of an operation has died."""
    late = LateWork(Transfer(0.01, RuntimeError("connection closed")), Delay(1, lambda _: None))
    with pytest.raises(RuntimeError, match="connection closed"):
        late.wait()


@pytest.mark.parametrize("name", ["reduce", "gather", "scatter", "exchange"])
def test_every_operator_is_late_in_its_wait_and_not_where_it_is_issued(name, group_of_two):
    """Fails if a kind of collective escapes a slow link, or its call sleeps."""
    group = dist.new_group([0, 1], group_desc="tp")
    two, four = torch.ones(2), torch.ones(4)
    call, tensors, size_bytes = {
        "reduce": (dist.all_reduce, (four,), 16),
        "gather": (compat.all_gather_single, (four, two), 16),
        "scatter": (compat.reduce_scatter_single, (two, four), 16),
        "exchange": (dist.all_to_all_single, (torch.ones(4), four), 16),
    }[name]
    seen, spans = [], []

    def delay(operation):
        seen.append(operation)
        return Delay(30_000_000, spans.append)

    operators = SlowOperators(delay)
    operators.install()
    try:
        call(*tensors, group=group_of_two.handle, async_op=True).wait()  # of no axis
        begin_ns = now_ns()
        work = call(*tensors, group=group, async_op=True)
        assert not spans
        work.wait()
        assert now_ns() - begin_ns >= 30_000_000
    finally:
        operators.remove()
    assert seen == [Operation(Axis.TP, (0, 1), size_bytes, None)]
    call(*tensors, group=group, async_op=True).wait()
    assert len(seen) == len(spans) == 1

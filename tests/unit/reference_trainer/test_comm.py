"""Collectives: waited time, and links that hold them back."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

from meshscope.probe.clock import now_ns
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.fault_plan import parse_fault, resolve
from meshscope.reference_trainer.faults import FaultInjector
from meshscope.reference_trainer.ground_truth import GroundTruth
from meshscope.reference_trainer.slow_link import SlowLinkHold


def slow_links(text, rank, layout):
    """Return the links of a rank under one always-active fault."""
    fault = resolve(parse_fault(text), layout, seed=0)
    injector = FaultInjector([fault], layout, rank, GroundTruth(None, rank, [fault]))
    injector.begin_step(0)
    return injector.links


def hold_of(links, group, axis):
    """Return what holds a collective back that is issued now."""
    work = dist.all_reduce(torch.ones(250), group=group.handle, async_op=True)
    return links.hold(work, axis, issue_ns=now_ns(), size_bytes=1000)


def test_a_slow_link_holds_its_group_on_its_axis_only(group_of_two):
    """Fails if a member escapes the slow link, or others are slowed as well."""
    layout = ParallelLayout(tp=2, dp=2)
    text = "slow_link:rank=0,axis=tp,delay_ms=1"
    links = [slow_links(text, rank, layout) for rank in range(4)]
    held = [hold_of(own, group_of_two, Axis.TP) is not None for own in links]
    assert held == [True, True, False, False]
    assert hold_of(links[0], group_of_two, Axis.DP) is None


def test_a_held_collective_returns_at_its_time_and_says_so():
    """Fails if a delay is too short, or is logged twice."""
    spans = []
    due_ns = now_ns() + 20_000_000
    hold = SlowLinkHold(due_ns, spans.append)
    thread = threading.Thread(target=hold.on_completion, args=(None,))
    thread.start()
    thread.join()
    assert now_ns() >= due_ns
    hold.finish()
    assert [end_ns >= due_ns for _, end_ns in spans] == [True]


def test_the_issuing_thread_is_not_held_when_the_result_is_there_at_once():
    """Fails if a rank sleeps where it issues a collective, in place of where it waits."""
    spans = []
    hold = SlowLinkHold(now_ns() + 10_000_000, spans.append)
    hold.on_completion(None)
    assert spans == []
    hold.finish()
    assert len(spans) == 1


def test_time_since_the_issue_counts_towards_the_delay():
    """Fails if a collective that overlapped with compute is delayed in full."""
    spans = []
    SlowLinkHold(now_ns() - 1, spans.append).finish()
    assert spans == []


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

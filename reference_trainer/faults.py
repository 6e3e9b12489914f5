"""Injects faults into one rank, and tells the ground truth what it did.

``slow_rank`` adds time in front of a stage's forward, inside the module call,
so that an observer of the stage sees a slower stage. ``slow_link`` holds the
collectives of one group back: on every member, none completes before
issue + latency + size / bandwidth.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from meshscope.probe.clock import now_ns, thread_cpu_ns
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis

from .fault_plan import ResolvedFault
from .ground_truth import GroundTruth

_BURN_WIDTH = 128
"""Width of the matrices that mode compute multiplies: about 0.1 ms each."""


class FaultInjector:
    """The faults of a job as they concern one rank.

    Args:
        faults: All faults of the job.
        layout: The mesh.
        rank: Global rank of this process.
        truth: Where applied faults are noted.
    """

    def __init__(
        self,
        faults: Sequence[ResolvedFault],
        layout: ParallelLayout,
        rank: int,
        truth: GroundTruth,
    ) -> None:
        self._all = tuple(faults)
        self._on_rank = [f for f in faults if f.spec.kind == "slow_rank" and f.rank == rank]
        self._on_links = [
            f for f in faults if f.spec.kind == "slow_link" and _same_group(f, layout, rank)
        ]
        self._truth = truth
        self._step = -1
        self._forwards: Counter[nn.Module] = Counter()

    def attach(self, stage: nn.Module) -> None:
        """Slow the forwards of a stage; nothing is hooked on a rank without a slow_rank fault."""
        if self._on_rank:
            stage.register_forward_pre_hook(self._before_forward)

    def begin_step(self, step: int) -> None:
        """Switch the faults on or off for a step."""
        self._step = step
        self._forwards.clear()

    def any_active(self) -> bool:
        """Return whether any fault of the job is on in this step, on this rank or another."""
        return any(fault.active(self._step) for fault in self._all)

    def hold(
        self, work: dist.Work, axis: Axis, *, issue_ns: int, size_bytes: int
    ) -> SlowLinkHold | None:
        """Keep a collective on slow links from completing before its time."""
        active = [f for f in self._on_links if f.spec.axis == axis and f.active(self._step)]
        if not active:
            return None
        requested_ns = sum(fault.wire_delay_ns(size_bytes) for fault in active)

        def log(span_ns: tuple[int, int]) -> None:
            self._truth.fault(
                "slow_link",
                self._step,
                span_ns,
                axis=str(axis),
                issue_ns=issue_ns,
                requested_ns=requested_ns,
                size_bytes=size_bytes,
            )

        hold = SlowLinkHold(issue_ns + requested_ns, log)
        work.get_future().then(hold.on_completion)
        return hold

    def _before_forward(self, stage: nn.Module, _args: Any) -> None:
        microbatch = self._forwards[stage]
        self._forwards[stage] += 1
        for fault in self._on_rank:
            if not fault.active(self._step):
                continue
            start_ns = now_ns()
            if fault.spec.mode == "sleep":
                time.sleep(fault.delay_ns / 1e9)
            else:
                _burn(fault.delay_ns)
            self._truth.fault(
                "slow_rank",
                self._step,
                (start_ns, now_ns()),
                mode=fault.spec.mode,
                microbatch=microbatch,
                requested_ns=fault.delay_ns,
            )


class SlowLinkHold:
    """Completes a collective no earlier than a given time.

    gloo marks a collective as complete only after the callbacks of its future
    have run, on the thread that did the transfer. Sleeping there keeps the
    link busy and the waiting rank inside torch's own wait, as a slow link does.

    Args:
        due_ns: The earliest completion.
        log: Takes start and end of the sleep.
    """

    def __init__(self, due_ns: int, log: Callable[[tuple[int, int]], None]) -> None:
        self._due_ns = due_ns
        self._log = log
        self._issuing_thread = threading.get_ident()

    def on_completion(self, _future: object) -> None:
        """Sleep on the backend's thread.

        A future that is complete already calls back on the issuing thread,
        which has other work; ``finish`` then makes up for it.
        """
        if threading.get_ident() != self._issuing_thread:
            self.finish()

    def finish(self) -> None:
        """Sleep for what is left, which after ``on_completion`` is nothing."""
        start_ns = now_ns()
        if start_ns < self._due_ns:
            time.sleep((self._due_ns - start_ns) / 1e9)
            self._log((start_ns, now_ns()))


def _same_group(fault: ResolvedFault, layout: ParallelLayout, rank: int) -> bool:
    """Return whether a rank is in the group of the fault's rank along the fault's axis."""
    return any({fault.rank, rank} <= set(group) for group in layout.groups(fault.spec.axis))


def _burn(cpu_ns: int) -> None:
    """Multiply matrices until this thread has used the given CPU time, in nanoseconds."""
    end_ns = thread_cpu_ns() + cpu_ns
    matrix = torch.full((_BURN_WIDTH, _BURN_WIDTH), 1.0 / _BURN_WIDTH)
    with torch.no_grad():
        while thread_cpu_ns() < end_ns:
            matrix = matrix @ matrix

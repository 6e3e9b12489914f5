"""Injects faults into one rank, and tells the ground truth what it did.

Each kind of fault acts where the real one would: a slow rank inside the module
call of its stage, a slow link between the transfer and the wait for it, a stall
of the data in the process that loads it. This module says when; how is in
``slow_link.py``, ``host_faults.py``, ``model_faults.py`` and ``duty_cycle.py``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from meshscope.probe.clock import now_ns
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message

from ..config.fault_plan import ResolvedFault
from ..model.pace import PartRunner
from ..parallel.comm import Communicator
from ..parallel.mesh import Mesh
from .duty_cycle import DutyCycle, Order, signal_scope
from .extra_compute import DeviceCompute, ExtraCompute, HostCompute
from .ground_truth import GroundTruth, Span
from .host_faults import GarbagePause, MemoryGrowth, SlowStorage, read_late
from .model_faults import HeavyStage, RouterBias
from .rank_faults import RankFaults
from .slow_link import FaultyLinks


class FaultInjector:
    """The faults of a job as they concern one rank.

    Args:
        faults: All faults of the job.
        layout: The mesh.
        rank: Global rank of this process.
        truth: Where applied faults are noted.

    Attributes:
        links: What the faults do to collectives and messages.
        added_ns: Time that heavy stages have added so far, in nanoseconds.
    """

    def __init__(
        self,
        faults: Sequence[ResolvedFault],
        layout: ParallelLayout,
        rank: int,
        truth: GroundTruth,
    ) -> None:
        self._faults = RankFaults(faults, layout, rank, truth)
        self.links = FaultyLinks(self._faults)
        self.added_ns = 0
        self._forwards: Counter[nn.Module] = Counter()
        self._microbatch = -1
        self._forward_start_ns = 0
        self._work: Sequence[float] = ()
        self._is_uneven = False
        self._pauses: dict[ResolvedFault, GarbagePause] = {}
        self._growth = MemoryGrowth()
        self._routers = RouterBias()
        self._step_start_ns = 0
        path = truth.path_of(rank)
        self._storage = SlowStorage(path and path.with_name(f"fault_checkpoint.rank{rank:05d}.pt"))
        self._duty: list[tuple[ResolvedFault, DutyCycle]] = []
        self._compute: ExtraCompute = HostCompute()
        self._on_gpu = False

    def any_active(self) -> bool:
        """Return whether any fault of the job is on in this step, on this rank or another."""
        return self._faults.any_active()

    def attach(self, stage: nn.Module) -> None:
        """Hook the forwards of a stage, where a fault of this rank acts in them."""
        if self._faults.of("slow_rank", "gc_pause", "sequence_imbalance"):
            stage.register_forward_pre_hook(self._before_forward)
        if self._faults.of("sequence_imbalance"):
            stage.register_forward_hook(self._after_forward)
        if self._faults.of("hot_expert"):
            self._routers.attach(stage)

    def wrap(self, runner: PartRunner, stage: int) -> PartRunner:
        """Return the runner of a stage's parts, with more time for heavy ones.

        Args:
            runner: Runs the parts.
            stage: Index of the stage in the model.
        """
        # Which stage has the embedding and the head, the model itself decides.
        heavy = [f for f in self._faults.of("heavy_stage") if f.spec.stage in (None, stage)]
        heavy += [f for f in self._faults.of("sequence_imbalance") if f.spec.delay_ms]
        if not heavy:
            return runner
        return HeavyStage(runner, partial(self._spend, heavy, stage), lambda: self._microbatch)

    @contextmanager
    def prepared(self, mesh: Mesh, comm: Communicator) -> Iterator[None]:
        """Make what faults need before the first step, and take it away after the last."""
        self._on_gpu = mesh.device.type == "cuda"
        if self._on_gpu and self._faults.of("slow_rank", "heavy_stage", "sequence_imbalance"):
            self._compute = DeviceCompute(mesh.device)
        self._build_heaps(comm, mesh)
        self.links.install(mesh.messages)
        self._start_duty_cycles(comm, mesh)
        try:
            yield
            self._compute.settle(wait=True)
            self._faults.truth.flush()
        finally:
            self.links.remove()
            for _, cycle in self._duty:
                cycle.close()

    def begin_step(self, step: int, work: Sequence[float] = ()) -> bool:
        """Switch the faults on or off for a step; return whether microbatches take the time of their work.

        Args:
            step: Index of the step.
            work: The work of each microbatch over that of a usual one.
        """
        self._faults.step = step
        self._forwards.clear()
        self._microbatch = -1
        self._work = work
        self._step_start_ns = now_ns()
        self._routers.set({f.spec.expert: f.spec.bias for f in self._faults.active("hot_expert")})
        self.links.begin_step()
        for fault, cycle in self._duty:
            stopped_frac = fault.spec.stopped_frac if fault.active(step) else 0.0
            cycle.order(Order(step, stopped_frac, round(fault.spec.period_ms * 1e6)))
        self._is_uneven = bool(work and self._faults.active("sequence_imbalance"))
        return self._is_uneven

    def work(self) -> float:
        """Return the work of the microbatch that is in the forward, 1 being usual."""
        return self.work_of(self._microbatch)

    def work_of(self, microbatch: int) -> float:
        """Return the work of a microbatch of this step, 1 being usual."""
        return self._work[microbatch] if self._is_uneven else 1.0

    def load_stall(self) -> SlowLoading:
        """Return what holds up the loading of this rank's batches."""
        return SlowLoading(tuple(self._faults.of("data_stall")))

    def log_load(self, step: int, span_ns: Span) -> None:
        """Note a batch whose loading was held up."""
        self._faults.truth.fault("data_stall", step, span_ns)

    def end_step(self, state: Callable[[], Mapping[str, Tensor]], comm: Communicator) -> None:
        """Do what happens once per step: growth of memory, checkpoints, reads of the device.

        Args:
            state: Returns what a checkpoint of this rank holds.
            comm: Issues the sum that ``item_sync`` reads.
        """
        self.links.before(None)
        self._compute.settle()
        faults = self._faults
        for fault in faults.active("hot_expert"):
            span_ns = (self._step_start_ns, now_ns())
            faults.log(fault, span_ns, expert=fault.spec.expert, bias=fault.spec.bias)
        for fault in faults.active("memory_growth"):
            span_ns = self._growth.grow(round(fault.spec.megabytes * 1e6))
            faults.log(fault, span_ns, held_bytes=self._growth.held_bytes)
        for fault in faults.active("checkpoint_stall"):
            span_ns, requested_ns = self._storage.save(
                state(), latency_ns=fault.delay_ns, bytes_per_s=fault.spec.bytes_per_s
            )
            faults.log(fault, span_ns, requested_ns=requested_ns)
        for fault in faults.active("item_sync"):
            total = comm.sum_of_all(next(iter(state().values())).flatten()[:1])
            span_ns = read_late(total, fault.delay_ns)
            faults.log(fault, span_ns, requested_ns=fault.delay_ns)

    def _before_forward(self, stage: nn.Module, _args: Any) -> None:
        self._microbatch = self._forwards[stage]
        self._forwards[stage] += 1
        for fault in self._faults.active("slow_rank"):
            start_ns = now_ns()
            log = self._log_of(
                fault,
                mode=fault.spec.way,
                microbatch=self._microbatch,
                requested_ns=fault.delay_ns,
            )
            if fault.spec.way == "sleep":
                time.sleep(fault.delay_ns / 1e9)
                log((start_ns, now_ns()))
            elif fault.spec.way == "compute":
                self._compute.spend(fault.delay_ns, log)
            # Else the process is stopped from outside, which the helper logs.
        if self._forwards.total() == 1:
            for fault in self._faults.active("gc_pause"):
                span_ns = self._pauses[fault].collect()
                self._faults.log(fault, span_ns, requested_ns=fault.delay_ns)
        self._forward_start_ns = now_ns()

    def _after_forward(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        for fault in self._faults.active("sequence_imbalance"):
            if fault.spec.delay_ms:  # it has a time of its own, which is logged where it is spent
                continue
            span_ns = (self._forward_start_ns, now_ns())
            self._faults.log(fault, span_ns, microbatch=self._microbatch, work=self.work())

    def _spend(
        self, heavy: Sequence[ResolvedFault], stage: int, part: str, microbatch: int, times: float
    ) -> None:
        """Spend the extra time of a stage's part, which is asked for per forward, so many times."""
        for fault in heavy:
            if not fault.active(self._faults.step) or (fault.spec.part or "layers") != part:
                continue
            details: dict[str, float | str] = {"part": part, "stage": stage}
            if fault.spec.kind == "sequence_imbalance":
                work = self.work_of(microbatch)
                details = {"microbatch": microbatch, "work": work, "stage": stage}
                requested_ns = round(fault.delay_ns * times * work)
            else:
                requested_ns = round(fault.delay_ns * times)
            log = self._log_of(fault, **details, requested_ns=requested_ns)
            if self._on_gpu:
                self._compute.spend(requested_ns, log)
            else:
                start_ns = now_ns()
                time.sleep(requested_ns / 1e9)
                log((start_ns, now_ns()))
                self.added_ns += now_ns() - start_ns

    def _log_of(self, fault: ResolvedFault, **details: float | str) -> Callable[[Span], None]:
        """Return what notes a fault of this step when it is over, maybe in a later one."""
        truth, step = self._faults.truth, self._faults.step

        def log(span_ns: Span) -> None:
            truth.fault(fault.spec.kind, step, span_ns, **details)

        return log

    def _build_heaps(self, comm: Communicator, mesh: Mesh) -> None:
        """Build what makes collections long; all wait here for it, and not in step 0.

        Raises:
            ConfigError: A collection cannot take as long as asked for; said on every rank.
        """
        for fault in self._faults.of("gc_pause"):
            self._pauses[fault] = GarbagePause(fault.delay_ns)
        for fault in self._faults.all:
            if fault.spec.kind != "gc_pause" or fault.rank is None:
                continue
            pause = self._pauses.get(fault)
            own = (pause.longest_ns if pause else 0, 0)
            longest_ns, _ = comm.share_own(fault.rank, own, mesh.device)
            if longest_ns < fault.delay_ns:
                most_ms, asked_ms = round(longest_ns / 1e6), fault.spec.delay_ms
                what = message("refused.longest_collection", longest_ms=most_ms, delay_ms=asked_ms)
                remedy = message("advice.shorter_delay", most_ms=round(0.8 * longest_ns / 1e6))
                raise ConfigError(what, where=fault.spec.where, remedy=remedy)

    def _start_duty_cycles(self, comm: Communicator, mesh: Mesh) -> None:
        """Start a helper for each victim, on the first rank that can send it signals."""
        host = signal_scope()
        for fault in self._faults.all:
            if fault.spec.kind != "slow_rank" or fault.spec.way != "duty" or fault.rank is None:
                continue
            pid, victims_host = comm.share_own(fault.rank, (os.getpid(), host), mesh.device)
            can_signal = torch.zeros(mesh.layout.world_size, device=mesh.device)
            can_signal[mesh.rank] = host == victims_host
            if mesh.rank == int(comm.sum_of_all(can_signal).argmax()):
                truth = self._faults.truth.path_of(fault.rank)
                self._duty.append((fault, DutyCycle(pid, truth)))


@dataclass(frozen=True, slots=True)
class SlowLoading:
    """Holds up the loading of batches; worker processes get a copy."""

    faults: tuple[ResolvedFault, ...]
    """The stalls of one rank."""

    def __call__(self, step: int) -> Span:
        """Sleep where a stall is on, and return when; (0, 0) where none is."""
        delay_ns = sum(fault.delay_ns for fault in self.faults if fault.active(step))
        if not delay_ns:
            return (0, 0)
        start_ns = now_ns()
        time.sleep(delay_ns / 1e9)
        return start_ns, now_ns()

"""The training run of one rank, from joining the job to leaving it."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from torch import Tensor

from meshscope import probe
from meshscope.analyze.formulas.schedules.schedule_records import rank_of_last_stage
from meshscope.probe.clock import now_ns

from ..checkpoint.checkpoint import Checkpoints
from ..checkpoint.source import Emit, agree_on_source
from ..config.config import TrainerConfig
from ..config.fault_plan import ResolvedFault, resolve
from ..faults.clock_fault import falsify_own_clock, own_capture
from ..faults.faults import FaultInjector
from ..faults.ground_truth import GroundTruth, attempt_folder, next_attempt
from ..parallel.comm import Communicator, PerfectLinks
from ..parallel.host_staging import staged_operations
from ..parallel.mesh import Mesh, Place, open_mesh
from ..planning.parameter_counts import described, parameter_count
from ..replica.assembly import Parts, build_parts, own_tokens
from .data import MicrobatchWork, batches
from .hardware import find_hardware
from .report import LossReport


def train(
    config: TrainerConfig,
    place: Place,
    *,
    out: Path | None = None,
    emit: Emit | None = None,
) -> list[float]:
    """Train, and return the loss of every step on the reporting rank.

    Args:
        config: The run; the same on every rank.
        place: Where this process stands in the job.
        out: Folder for the ground truth and ``losses.json``; None writes nothing.
        emit: Takes one line per step on the reporting rank, and what was resumed on rank 0.

    Returns:
        The global mean loss of each step that was done now; empty on all ranks but one.

    Raises:
        ConfigError: The job, the machine or the checkpoint does not fit the configuration.
        CheckpointError: A checkpoint cannot be read or written.
    """
    config.check_trainable()
    with open_mesh(config.layout, config.device, place) as mesh:
        report, falsify = _train_on(mesh, config, out, emit)
    falsify()
    return report.losses


def _train_on(
    mesh: Mesh, config: TrainerConfig, out: Path | None, emit: Emit | None
) -> tuple[LossReport, Callable[[], None]]:
    """Train on a mesh; return the losses, and what is to be done to the finished capture."""
    slow = any(fault.kind == "slow_link" for fault in config.faults)
    comm = Communicator(PerfectLinks(), staged_operations(config.device, held_back=slow))
    _describe_run(config, mesh, comm)
    source = agree_on_source(config, mesh, comm, emit)
    probe.describe(training_step=source.step)
    out = _agree_on_folder(out, mesh, comm, emit)
    faults = _agree_on_faults(config, mesh, comm)
    capture = own_capture(faults, mesh, comm)
    truth = GroundTruth(out, mesh.rank, faults)
    injector = FaultInjector(faults, mesh.layout, mesh.rank, truth)
    comm.links = injector.links
    reports = mesh.is_reporter(rank_of_last_stage(config.schedule.kind, config.layout.pp))
    report = LossReport(emit if reports else None, first_step=source.step)
    losses = out / "losses.json" if out is not None and reports else None
    if losses is not None:
        report.begin(losses)
    parts = build_parts(config, mesh, comm, injector, out=out, first_step=source.step)
    checkpoints = Checkpoints(config, mesh, parts)
    checkpoints.load(source)
    _freeze_garbage()
    with injector.prepared(mesh, comm):
        own = own_tokens(config, mesh, comm)
        work = MicrobatchWork(config, mesh.dp.position)
        data = _own_batches(config, mesh, injector, source.step)
        for step in range(source.step, config.train.steps):
            start_ns = now_ns()
            is_uneven = injector.begin_step(step, work.of_step(step))
            if config.data.tell_sequences:
                for lengths in work.sequences_of_step(step, apart=is_uneven):
                    probe.sequences(lengths)
            with probe.span("data_load"):
                batch = next(data)
            ids, labels = (tensor.to(mesh.device, non_blocking=True) for tensor in batch)
            loss, norm = _train_step(parts, mesh, comm, ids[:, own], labels[:, own])
            injector.end_step(parts.state, comm)
            checkpoints.after_step(step + 1)
            probe.step(tokens=ids.numel())
            end_ns = now_ns()
            truth.step(step, (start_ns, end_ns), fault_active=injector.any_active())
            if loss is not None and reports:
                report.add(step, loss, end_ns - start_ns, grad_norm=norm)
        parts.replica.settle()
        report.finish()
        if losses is not None:
            report.write(losses)
        checkpoints.finish()
    return report, partial(falsify_own_clock, faults, mesh.rank, capture, truth)


def _freeze_garbage() -> None:
    """Tell the collector that what exists now lives as long as the run.

    A collection need not look at it again, and its pauses, which differ between ranks,
    stay short.
    """
    gc.collect()
    gc.freeze()


def _own_batches(
    config: TrainerConfig, mesh: Mesh, injector: FaultInjector, first_step: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the batches of this replica from a step on, held up where a fault says so."""
    return batches(
        config,
        mesh.dp.position,
        first_step=first_step,
        stall=injector.load_stall(),
        log=injector.log_load,
    )


def _train_step(
    parts: Parts, mesh: Mesh, comm: Communicator, ids: Tensor, labels: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Run one optimizer step.

    Returns:
        The global mean loss on the last stage, and the gradient's norm where it is wanted.
    """
    account = parts.account
    with account.phase("weights"):
        parts.replica.start_step()
    with account.phase("pipeline"):
        loss = parts.pipeline.step(ids, labels)
    summing = None if loss is None else comm.all_reduce(loss, mesh.replicas)
    with account.phase("update"):
        parts.replica.finish()
        norm = parts.replica.update()
    if summing is not None:
        summing.wait()
    account.end_step()
    return loss, norm


def _agree_on_folder(
    out: Path | None, mesh: Mesh, comm: Communicator, emit: Emit | None
) -> Path | None:
    """Return where this attempt at the run writes, so that none overwrites an earlier one."""
    if out is None:
        return None
    number = comm.share_from_rank_zero(next_attempt(out), mesh.device)
    folder = attempt_folder(out, number)
    if number > 1 and mesh.rank == 0 and emit is not None:
        emit(f"{out} has the files of an earlier attempt; this one writes into {folder}")
    return folder


def _agree_on_faults(
    config: TrainerConfig, mesh: Mesh, comm: Communicator
) -> tuple[ResolvedFault, ...]:
    """Draw ranks and seeds; where no seed is given, rank 0 takes one from the system."""
    resolved = []
    for spec in config.faults:
        seed = spec.seed
        if seed is None:
            seed = comm.share_from_rank_zero(secrets.randbits(31), mesh.device)
        resolved.append(resolve(spec, mesh.layout, seed))
    return tuple(resolved)


def _describe_run(config: TrainerConfig, mesh: Mesh, comm: Communicator) -> None:
    """Tell the probe, where one is attached, what it cannot see by watching."""
    hardware = find_hardware(mesh, comm)
    model = config.model
    probe.describe(
        layout=config.layout,
        model={
            **asdict(described(model, config.moe)),
            "parameters": parameter_count(model, config.moe),
        },
        schedule=config.schedule.kind,
        microbatches=config.schedule.microbatches,
        tokens_per_step=config.train.global_batch * model.seq_len,
        peak_flops=hardware.peak_flops,
        peak_source=hardware.peak_source,
        device_name=hardware.name,
    )

"""The training run of one rank, from joining the job to leaving it."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from meshscope import probe
from meshscope.probe.clock import now_ns

from .assembly import Parts, build_parts, own_tokens
from .clock_fault import falsify_own_clock
from .comm import Communicator, PerfectLinks
from .config import TrainerConfig
from .data import batches
from .fault_plan import ResolvedFault, resolve
from .faults import FaultInjector
from .ground_truth import GroundTruth
from .hardware import find_hardware
from .mesh import Mesh, Place, open_mesh
from .packing import MicrobatchWork
from .parameter_counts import parameter_count
from .report import LossReport
from .schedules import rank_of_last_stage


def train(
    config: TrainerConfig,
    place: Place,
    *,
    out: Path | None = None,
    emit: Callable[[str], None] | None = None,
) -> list[float]:
    """Train, and return the loss of every step on the reporting rank.

    Args:
        config: The run; the same on every rank.
        place: Where this process stands in the job.
        out: Folder for the ground truth and ``losses.json``; None writes nothing.
        emit: Takes one line per step, on the reporting rank only.

    Returns:
        The global mean loss of each step; empty on all ranks but one.

    Raises:
        ConfigError: The job or the machine does not fit the configuration.
    """
    config.check_trainable()
    with open_mesh(config.layout, config.device, place) as mesh, ExitStack() as stack:
        comm = Communicator(PerfectLinks())
        _describe_run(config, mesh, comm)
        faults = _agree_on_faults(config, mesh, comm)
        truth = GroundTruth(out, mesh.rank, faults)
        injector = FaultInjector(faults, mesh.layout, mesh.rank, truth)
        comm.links = injector.links
        parts = build_parts(config, mesh, comm, injector, out=out)
        reports = mesh.is_reporter(rank_of_last_stage(config.schedule.kind, config.layout.pp))
        report = LossReport(emit if reports else None)

        # What exists now lives as long as the run: a collection need not look at it
        # again, and its pauses, which differ between ranks, stay short.
        gc.collect()
        gc.freeze()
        stack.enter_context(injector.prepared(mesh, place, comm))
        own = own_tokens(config, mesh, comm)
        work = MicrobatchWork(config, mesh.dp.position)
        data = batches(config, mesh.dp.position, stall=injector.load_stall(), log=injector.log_load)
        for step in range(config.train.steps):
            start_ns = now_ns()
            injector.begin_step(step, work.of_step(step))
            with probe.span("data_load"):
                ids, labels = (tensor.to(mesh.device) for tensor in next(data))
            loss, norm = _train_step(parts, mesh, comm, ids[:, own], labels[:, own])
            injector.end_step(parts.state, comm)
            probe.step(tokens=ids.numel())
            end_ns = now_ns()
            truth.step(step, (start_ns, end_ns), fault_active=injector.any_active())
            if loss is not None and reports:
                report.add(step, loss, end_ns - start_ns, grad_norm=norm)

        parts.replica.settle()
        report.finish()
        if out is not None and reports:
            report.write(out / "losses.json")
    falsify_own_clock(faults, place.rank, truth)
    return report.losses


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
            "num_layers": model.layers,
            "hidden_size": model.hidden,
            # The width that a token passes, which is what its FLOPs come from.
            "ffn_size": model.ffn * config.moe.chosen,
            "num_heads": model.heads,
            "seq_len": model.seq_len,
            "vocab_size": model.vocab,
            "parameters": parameter_count(model, config.moe),
        },
        schedule=config.schedule.kind,
        microbatches=config.schedule.microbatches,
        tokens_per_step=config.train.global_batch * model.seq_len,
        peak_flops=hardware.peak_flops,
        peak_source=hardware.peak_source,
        device_name=hardware.name,
    )

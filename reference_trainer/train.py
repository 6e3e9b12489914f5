"""The training run of one rank, from joining the job to leaving it."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from meshscope import probe
from meshscope.probe.clock import now_ns

from .activation_memory import ActivationRunner, ActivationStore, recompute_frac, recomputed
from .comm import Communicator, PerfectLinks
from .config import TrainerConfig
from .context_parallel import ContextSplit
from .data import batches
from .fault_plan import ResolvedFault, resolve
from .faults import FaultInjector
from .ground_truth import GroundTruth
from .hardware import find_hardware
from .memory_account import Account, MemoryAccount, NoAccount, account_path
from .mesh import Mesh, Place, open_mesh
from .model import Stage
from .moe import ExpertSplit
from .pace import NoPace, Pace, PartRunner
from .parameter_counts import parameter_count
from .pipeline_parallel import Pipeline, own_stages, stage_part
from .replica import Replica, build_replica
from .report import LossReport
from .schedules import SPLIT_BACKWARD, rank_of_last_stage
from .tied_embedding import TiedEmbedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one rank trains with."""

    stages: tuple[Stage, ...]
    """This rank's part of the model, by chunk."""
    pipeline: Pipeline
    """Forward and backward of a step."""
    replica: Replica
    """Keeps the weights of all replicas the same, step after step."""
    account: Account
    """Notes what is kept in memory."""


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
    with open_mesh(config.layout, config.device, place) as mesh:
        comm = Communicator(PerfectLinks())
        _describe_run(config, mesh, comm)
        faults = _agree_on_faults(config, mesh, comm)
        truth = GroundTruth(out, mesh.rank, faults)
        injector = FaultInjector(faults, mesh.layout, mesh.rank, truth)
        comm.links = injector
        parts = build_parts(config, mesh, comm, injector, out)
        reports = mesh.is_reporter(rank_of_last_stage(config.schedule.kind, config.layout.pp))
        report = LossReport(emit if reports else None)

        # What exists now lives as long as the run: a collection need not look at it
        # again, and its pauses, which differ between ranks, stay short.
        gc.collect()
        gc.freeze()
        data = batches(config, mesh.dp.position)
        own = own_tokens(config, mesh, comm)
        for step in range(config.train.steps):
            start_ns = now_ns()
            injector.begin_step(step)
            with probe.span("data_load"):
                ids, labels = (tensor.to(mesh.device) for tensor in next(data))
            loss, norm = _train_step(parts, mesh, comm, ids[:, own], labels[:, own])
            probe.step(tokens=ids.numel())
            end_ns = now_ns()
            truth.step(step, (start_ns, end_ns), fault_active=injector.any_active())
            if loss is not None and reports:
                report.add(step, loss, end_ns - start_ns, grad_norm=norm)

        parts.replica.settle()
        report.finish()
        if out is not None and reports:
            report.write(out / "losses.json")
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


def build_parts(
    config: TrainerConfig,
    mesh: Mesh,
    comm: Communicator,
    injector: FaultInjector,
    out: Path | None = None,
) -> Parts:
    """Build the stages of this rank and what trains them."""
    memory = config.memory
    store = ActivationStore(offload=memory.offload) if memory.offload or memory.account else None
    stages = [
        Stage(
            config.model,
            stage_part(config, index),
            seed=config.train.seed,
            tp=mesh.tp,
            comm=comm,
            runner=_build_runner(config, comm, store),
            sequence_parallel=config.tensor.sequence_parallel,
            context=_context(config, mesh, comm),
            experts=_experts(config, mesh),
        ).to(mesh.device)
        for index in own_stages(config, mesh.pp.position)
    ]
    for stage in stages:
        if memory.recompute == "selective":
            stage.recompute_halves(recomputed)
        injector.attach(stage)
    tied = TiedEmbedding(config, mesh, stages, comm)
    replica = build_replica(config, mesh, stages, tied, comm)
    account: Account = NoAccount()
    if memory.account and store is not None and out is not None:
        path = account_path(out, mesh.rank)
        account = MemoryAccount(path, mesh.device, store, replica.held)
    return Parts(
        stages=tuple(stages),
        pipeline=Pipeline(config, mesh, stages, comm, replica.listener),
        replica=replica,
        account=account,
    )


def _build_runner(
    config: TrainerConfig, comm: Communicator, store: ActivationStore | None
) -> PartRunner:
    """Return what runs the parts of a stage."""
    runner: PartRunner = NoPace()
    if config.pace.enabled:
        runner = Pace(
            config.pace,
            lambda: comm.waited_ns,
            splits_backward=config.schedule.kind in SPLIT_BACKWARD,
            recompute_frac=recompute_frac(config),
        )
    full = config.memory.recompute == "full"
    return ActivationRunner(runner, full=full, store=store) if full or store else runner


def own_tokens(config: TrainerConfig, mesh: Mesh, comm: Communicator) -> Tensor:
    """Return the positions (T,) of this rank's tokens in a sequence.

    Data is made in whole sequences, which the ranks of a context group share.
    """
    return _context(config, mesh, comm).own_tokens(config.model.seq_len).to(mesh.device)


def _context(config: TrainerConfig, mesh: Mesh, comm: Communicator) -> ContextSplit:
    """Return how this rank shares its sequences."""
    return ContextSplit(mesh.cp, comm, config.context.form)


def _experts(config: TrainerConfig, mesh: Mesh) -> ExpertSplit | None:
    """Return who holds the experts; None where there are none."""
    if config.moe.experts == 0:
        return None
    return ExpertSplit(
        config=config.moe,
        group=mesh.ep,
        context=mesh.cp,
        loss_shares=config.layout.dp * config.schedule.microbatches,
    )


def _agree_on_faults(
    config: TrainerConfig, mesh: Mesh, comm: Communicator
) -> tuple[ResolvedFault, ...]:
    """Draw ranks and seeds; where no seed is given, rank 0 takes one from the system."""
    resolved = []
    for spec in config.faults:
        seed = spec.seed
        if seed is None:
            seed = comm.share_from_rank_zero(secrets.randbits(31), mesh.device)
        resolved.append(resolve(spec, mesh.layout.world_size, seed))
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

"""Puts together what one rank trains with, from the configuration and its place in the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from meshscope.analyze.formulas.schedules.schedule_records import SPLIT_BACKWARD

from ..config.config import TrainerConfig
from ..faults.faults import FaultInjector
from ..model.activation_memory import ActivationRunner, ActivationStore, recompute_frac, recomputed
from ..model.model import Stage
from ..model.moe import ExpertSplit
from ..model.pace import NoPace, Pace, PartRunner, WeightPace
from ..parallel.comm import Communicator
from ..parallel.context_parallel import ContextSplit
from ..parallel.mesh import Mesh
from .memory_account import Account, MemoryAccount, NoAccount, account_path, local_part
from .pipeline_parallel import Pipeline, own_stages, stage_part
from .replica import Replica, build_replica
from .tied_embedding import TiedEmbedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one rank trains with."""

    stages: nn.ModuleList
    """This rank's stages, by chunk."""
    pipeline: Pipeline
    """Forward and backward of a step."""
    replica: Replica
    """Keeps the weights of all replicas the same, step after step."""
    account: Account
    """Notes what is kept in memory."""

    def state(self) -> Mapping[str, Tensor]:
        """Return what a checkpoint of this rank holds: its part of each weight."""
        self.replica.settle()
        return {name: local_part(tensor) for name, tensor in self.stages.state_dict().items()}


def build_parts(
    config: TrainerConfig,
    mesh: Mesh,
    comm: Communicator,
    injector: FaultInjector,
    *,
    out: Path | None = None,
    first_step: int = 0,
) -> Parts:
    """Build the stages of this rank and what trains them; every rank must come here.

    Args:
        config: The run.
        mesh: This rank's groups.
        comm: Issues the collectives.
        injector: Hooks the faults of this rank into its stages.
        out: Folder of the account of memory; None writes none.
        first_step: Where the training begins.
    """
    memory, own = config.memory, own_stages(config, mesh.pp.position)
    store = ActivationStore(offload=memory.offload) if memory.offload or memory.account else None
    stages = [_build_stage(config, mesh, comm, injector, index=index, store=store) for index in own]
    tied = TiedEmbedding(config, mesh, stages, comm)
    replica = build_replica(config, mesh, stages, tied, comm)
    return Parts(
        stages=nn.ModuleList(stages),
        pipeline=Pipeline(
            config,
            mesh,
            stages,
            comm,
            replica.listener,
            paces=[_weight_pace(config, stage, comm, injector) for stage in own],
        ),
        replica=replica,
        account=_account(mesh, replica, store if memory.account else None, out, first_step),
    )


def _build_stage(
    config: TrainerConfig,
    mesh: Mesh,
    comm: Communicator,
    injector: FaultInjector,
    *,
    index: int,
    store: ActivationStore | None,
) -> Stage:
    stage = Stage(
        config.model,
        stage_part(config, index),
        seed=config.train.seed,
        tp=mesh.tp,
        comm=comm,
        runner=_build_runner(config, index, comm, injector, store),
        sequence_parallel=config.tensor.sequence_parallel,
        context=_context(config, mesh, comm),
        experts=_experts(config, mesh),
    )
    if mesh.device.type != "cpu":  # where weights are drawn; fake ones cannot be moved
        stage.to(mesh.device)
    if config.memory.recompute == "selective":
        stage.recompute_halves(recomputed)
    injector.attach(stage)
    return stage


def _account(
    mesh: Mesh, replica: Replica, store: ActivationStore | None, out: Path | None, first_step: int
) -> Account:
    """Return what notes the memory of this rank; nothing does without a store or a folder."""
    if store is None or out is None:
        return NoAccount()
    path = account_path(out, mesh.rank)
    return MemoryAccount(
        path, mesh.device, store, lambda: replica.kept().sizes(), first_step=first_step
    )


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


def _build_runner(
    config: TrainerConfig,
    stage: int,
    comm: Communicator,
    injector: FaultInjector,
    store: ActivationStore | None,
) -> PartRunner:
    """Return what runs the parts of a stage, which is given by its place in the model."""
    runner: PartRunner = NoPace()
    if config.pace.enabled:
        repeated = recompute_frac(config)
        runner = Pace(
            config.pace,
            lambda: comm.waited_ns + injector.added_ns,
            injector.work,
            recompute_frac=repeated,
            splits_backward=config.schedule.kind in SPLIT_BACKWARD,
        )
    runner = injector.wrap(runner, stage)
    full = config.memory.recompute == "full"
    return ActivationRunner(runner, full=full, store=store) if full or store else runner


def _weight_pace(
    config: TrainerConfig, stage: int, comm: Communicator, injector: FaultInjector
) -> WeightPace | None:
    """Return the pace of a stage's backward halves; None where they need none of their own."""
    if not config.pace.enabled or config.schedule.kind not in SPLIT_BACKWARD:
        return None
    part = stage_part(config, stage)
    return WeightPace(
        config.pace,
        len(part.layers),
        (part.first, part.last),
        lambda: comm.waited_ns + injector.added_ns,
        injector.work_of,
    )

"""One of the replicas of a stage: its weights, its gradients and their update.

``Replica`` is what the training loop sees. ``BucketReplica`` is our own reducer,
for gradients that are summed whole (ZeRO 0) or kept in parts (ZeRO 1 and 2);
``FullyShardedReplica`` is FSDP2 (ZeRO 3)::

    settle       weights are whole
    start_step   gradients are zero
                 ... all microbatches; mark_final(stage) after its last backward
    finish       gradients are summed over the replicas
    update       clip, optimizer, start to gather the weights
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ..config.config import TrainerConfig
from ..model.model import Stage
from ..parallel.comm import Communicator
from ..parallel.gradient_norm import Reduction, by_reduction, gradient_norm
from ..parallel.mesh import Mesh
from ..parallel.weight_places import TrainedPart
from .fully_sharded import FullyShardedReplica
from .memory_account import KeptTensors, optimizer_state
from .optimizer import build_optimizer
from .pipeline_parallel import GradientListener
from .tied_embedding import TiedEmbedding
from .weight_share import WeightShare


class Replica(Protocol):
    """Keeps the weights of all replicas the same."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return what updates this rank's part of the weights."""

    @property
    def listener(self) -> GradientListener | None:
        """Return what the pipeline tells of gradients; None where torch tells FSDP2 itself."""

    def start_step(self) -> None:
        """Make the weights whole and the gradients zero."""

    def finish(self) -> None:
        """Return when the gradients are summed over all that hold the same weights."""

    def update(self) -> Tensor | None:
        """Update the weights by this step's gradients; return their norm where it is wanted."""

    def settle(self) -> None:
        """Return when the weights are whole."""

    def trained_parts(self) -> list[TrainedPart]:
        """Return what this rank trains of each weight."""

    def publish(self) -> None:
        """Make the model's weights those that were written into the trained parts, everywhere."""

    def kept(self) -> KeptTensors:
        """Return what this rank keeps from step to step."""


def build_replica(
    config: TrainerConfig,
    mesh: Mesh,
    stages: Sequence[Stage],
    tied: TiedEmbedding,
    comm: Communicator,
) -> Replica:
    """Return what the run asks for; every rank of the job must call this.

    Args:
        config: The run.
        mesh: This rank's groups.
        stages: This rank's stages, in model order and fp32; changed to the run's precision.
        tied: Sums the gradient of a tied embedding over its two copies.
        comm: Issues the collectives.
    """
    if config.data_parallel.zero == 3:
        return FullyShardedReplica(config, mesh, stages, comm)
    return BucketReplica(config, mesh, stages, tied, comm)


class BucketReplica:
    """Gradients in buckets; weights whole, optimizer state whole or in parts.

    Args:
        config: The run; ``data_parallel.zero`` at most 2.
        mesh: This rank's groups.
        stages: This rank's stages.
        tied: Sums the gradient of a tied embedding over its two copies.
        comm: Issues the collectives.

    Attributes:
        optimizer: Updates the weights or their masters.
    """

    def __init__(
        self,
        config: TrainerConfig,
        mesh: Mesh,
        stages: Sequence[Stage],
        tied: TiedEmbedding,
        comm: Communicator,
    ) -> None:
        self._stages = list(stages)
        self._final: list[nn.Module] = []
        self._tied = tied
        uses = Counter(weight for stage in stages for weight in stage.parameters())
        self._shares = [
            WeightShare(
                config,
                {weight: uses[weight] for weight in weights},
                getattr(mesh, kind.value),
                tied,
                comm,
                # The ranks of the wider group count as copies already.
                tp_size=1 if kind is Reduction.REPLICAS_AND_TP else mesh.tp.size,
            )
            for kind, weights in by_reduction(uses).items()
        ]
        self._masters = [share.masters for share in self._shares if share.masters is not None]
        trained = [weight for share in self._shares for weight in share.trained]
        self.optimizer = build_optimizer(config.train, trained)
        self._norm = gradient_norm(config.train.max_grad_norm, mesh, comm)

    @property
    def listener(self) -> GradientListener:
        """Return what the pipeline tells of gradients: this."""
        return self

    def collect(self, stage: nn.Module) -> None:
        """Take the gradients that a backward of a stage has just written."""
        written = set(stage.parameters())
        for share in self._shares:
            share.reducer.collect(weight for weight in share.weights if weight in written)

    def mark_final(self, stage: nn.Module) -> None:
        """Take the gradients of a stage as final for this step, but for what another one shares."""
        self._final.append(stage)
        running = [other for other in self._stages if other not in self._final]
        shared = {weight for other in running for weight in other.parameters()}
        final = set(stage.parameters()) - shared
        for share in self._shares:
            share.reducer.mark_final(weight for weight in share.weights if weight in final)

    def start_step(self) -> None:
        """Make the weights whole and the gradients zero."""
        self.settle()
        self._final.clear()
        for share in self._shares:
            share.reducer.start_step()

    def finish(self) -> None:
        """Return when the gradients are summed over all that hold the same weights."""
        for share in self._shares:
            share.finish(self._tied)

    def update(self) -> Tensor | None:
        """Update the weights by this step's gradients; return their norm where it is wanted."""
        norm = None
        if self._norm is not None:
            norm = self._norm.clip([p for s in self._shares for p in s.pieces()])
        for share in self._shares:
            if share.masters is not None:
                share.masters.take_gradients(share.reducer.sums)
        self.optimizer.step()
        for masters in self._masters:
            masters.drop_gradients()
            masters.publish()
        return norm

    def settle(self) -> None:
        """Return when the weights are whole."""
        for masters in self._masters:
            masters.settle()

    def trained_parts(self) -> list[TrainedPart]:
        """Return what this rank trains of each weight."""
        return [part for share in self._shares for part in share.trained_parts()]

    def publish(self) -> None:
        """Make the model's weights those of the masters, on all ranks."""
        for masters in self._masters:
            masters.publish()
        self.settle()

    def kept(self) -> KeptTensors:
        """Return what this rank keeps from step to step."""
        return KeptTensors(
            weights=[weight for share in self._shares for weight in share.weights],
            masters=[master for one in self._masters for master in one.copies],
            gradients=[flat for share in self._shares for flat in share.reducer.held],
            optimizer=optimizer_state(self.optimizer),
        )

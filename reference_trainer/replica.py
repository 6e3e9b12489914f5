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
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from meshscope.probe.schema.terms import Axis

from .comm import Communicator
from .config import TrainerConfig
from .data_parallel import GradientReducer, ReductionPlan
from .fully_sharded import FullyShardedReplica
from .gradient_buckets import GRADIENT_DTYPE, split_into_buckets
from .gradient_groups import Reduction, by_reduction
from .gradient_norm import Piece, copies_over, gradient_norm
from .gradient_wire import wire_for
from .master_weights import MasterWeights
from .memory_account import KeptTensors, optimizer_state
from .mesh import Mesh, MeshGroup
from .model import Stage
from .optimizer import build_optimizer
from .pipeline_parallel import GradientListener
from .precision import model_dtype
from .schedules import SPLIT_BACKWARD
from .tied_embedding import TiedEmbedding
from .weight_places import TrainedPart


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
            _Share(
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
        self._publish()
        return norm

    def settle(self) -> None:
        """Return when the weights are whole."""
        for share in self._shares:
            if share.masters is not None:
                share.masters.settle()

    def trained_parts(self) -> list[TrainedPart]:
        """Return what this rank trains of each weight."""
        return [part for share in self._shares for part in share.trained_parts()]

    def publish(self) -> None:
        """Make the model's weights those of the masters, on all ranks."""
        self._publish()
        self.settle()

    def _publish(self) -> None:
        for share in self._shares:
            if share.masters is not None:
                share.masters.publish()

    def kept(self) -> KeptTensors:
        """Return what this rank keeps from step to step."""
        masters = [share.masters for share in self._shares if share.masters is not None]
        return KeptTensors(
            weights=[weight for share in self._shares for weight in share.weights],
            masters=[master for one in masters for master in one.copies],
            gradients=[flat for share in self._shares for flat in share.reducer.held],
            optimizer=optimizer_state(self.optimizer),
        )


class _Share:
    """Weights that the same ranks hold alike.

    Args:
        config: The run.
        uses: The weights in model order, and how many of this rank's stages use each.
        group: The ranks that hold them.
        tied: Names the weight that needs a bucket of its own.
        comm: Issues the collectives.
        tp_size: Tensor-parallel ranks, as far as they are not in the group.

    Attributes:
        weights: The weights, in model order, each once.
        masters: What the optimizer updates in their place; None where it updates them.
        reducer: Sums their gradients.
    """

    def __init__(
        self,
        config: TrainerConfig,
        uses: Mapping[nn.Parameter, int],
        group: MeshGroup,
        tied: TiedEmbedding,
        comm: Communicator,
        *,
        tp_size: int,
    ) -> None:
        zero = config.data_parallel.zero
        assert zero != 3  # that is FullyShardedReplica
        self.weights = list(uses)
        self._group = group
        self._tp_size = tp_size
        self._zero = zero
        self._tied_weight = tied.weight
        self._buckets = split_into_buckets(
            self.weights,
            config.train.bucket_bytes,
            parts=group.size if zero else 1,
            alone=tied.weight,
        )
        dtype = model_dtype(config)
        self.masters: MasterWeights | None = None
        if zero or dtype != GRADIENT_DTYPE:
            self.masters = MasterWeights(
                self._buckets, group, comm, dtype=dtype, sharded=bool(zero)
            )
        wire = wire_for(config.data_parallel.compression, group, comm)
        plan = ReductionPlan(
            backwards=config.schedule.microbatches,
            zero=zero,
            hooked=config.schedule.kind not in SPLIT_BACKWARD,
        )
        shared = [weight for weight, count in uses.items() if count > 1]
        self.reducer = GradientReducer(self._buckets, group, wire, plan, shared)

    def finish(self, tied: TiedEmbedding) -> None:
        """Return when every gradient is the sum over the replicas and over tied copies."""
        self.reducer.finish()
        for bucket, flat in zip(self._buckets, self.reducer.sums, strict=True):
            if bucket.members[0] is self._tied_weight:
                tied.sum_gradient(flat)

    @property
    def trained(self) -> list[nn.Parameter]:
        """Return what the optimizer updates."""
        return self.weights if self.masters is None else self.masters.masters

    def trained_parts(self) -> list[TrainedPart]:
        """Return what this rank trains of each weight."""
        if self.masters is None:
            return [TrainedPart(w, 0, w, slice(0, w.numel())) for w in self.weights]
        return [
            TrainedPart(piece.parameter, piece.start, master, piece.place)
            for bucket, master in zip(self._buckets, self.masters.masters, strict=True)
            for piece in bucket.pieces(self._part)
        ]

    @property
    def _part(self) -> int:
        """Return which part of each bucket is this rank's."""
        return self._group.position if self._zero else 0

    def pieces(self) -> list[Piece]:
        """Return the sums by weight, as views, so that clipping them clips the sums."""
        replicas = 1 if self._zero else self._group.size
        return [
            Piece(flat[place], replicas * self._copies(weight))
            for bucket, flat in zip(self._buckets, self.reducer.sums, strict=True)
            for weight, _, place in bucket.pieces(self._part)
        ]

    def _copies(self, weight: nn.Parameter) -> int:
        """Return how many ranks of one replica hold the same of a weight."""
        ends = 2 if weight is self._tied_weight else 1
        return ends * copies_over(Axis.TP, weight, self._tp_size)

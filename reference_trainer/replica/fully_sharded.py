"""ZeRO-3 and hybrid sharding: each rank keeps a part of every weight.

FSDP2 does it (``torch.distributed.fsdp.fully_shard``; Zhao et al. 2023, arXiv
2304.11277; Rajbhandari et al. 2020, arXiv 1910.02054, section 5.3). One group of
weights per block, one for the embedding, one for the head. The pipeline runtime
gathers all groups of a stage at the start of a step, keeps them for all
microbatches, and reduces the gradients after the last backward::

    all-gather each group | all microbatches | reduce-scatter each group | optimizer

So what is saved within a step is gradients and optimizer state; between steps
the weights too. With ``shard_ranks`` fewer than the replicas, each group of that
many neighbours holds one copy, and an all-reduce joins the copies' gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from meshscope.probe.schema.terms import Axis

from ..compat import AllGather, ReduceScatter, real_tensors
from ..config.config import TrainerConfig
from ..layout.group_members import shard_groups
from ..model.model import Stage
from ..model.precision import model_dtype
from ..parallel.comm import Communicator
from ..parallel.gradient_norm import (
    Piece,
    Reduction,
    by_reduction,
    copies_over,
    gradient_norm,
    mark_split,
    reduced_over,
    reduction_of,
    split_axes,
)
from ..parallel.mesh import Mesh, MeshGroup, own_group
from ..parallel.weight_places import TrainedPart, box_of, hold_box
from .gradient_wire import MASTER_DTYPE
from .memory_account import KeptTensors, local_part, optimizer_state
from .optimizer import build_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroups:
    """The replicas, cut into groups that share one copy of the weights."""

    shard: MeshGroup
    """Ranks that hold one copy together."""
    replicate: MeshGroup
    """Ranks that hold the same part, one in each copy."""


def open_shard_groups(mesh: Mesh, shard_ranks: int) -> ShardGroups:
    """Create the groups; every rank of the job must call this.

    Args:
        mesh: This rank's mesh.
        shard_ranks: Neighbouring replicas per copy; 0 for all.
    """
    size = shard_ranks or mesh.replicas.size
    shard, replicate = shard_groups(mesh.layout, size)
    whole = size == mesh.replicas.size
    return ShardGroups(
        shard=mesh.replicas if whole else own_group(shard, mesh.rank, mesh.replicas.axis),
        replicate=own_group(replicate, mesh.rank, mesh.replicas.axis),
    )


class FullyShardedReplica:
    """Weights, gradients and optimizer state in parts; see ``replica.Replica``.

    Args:
        config: The run.
        mesh: This rank's groups.
        stages: This rank's stages, sharded here.
        comm: Issues what FSDP2 leaves to others.

    Attributes:
        optimizer: Updates this rank's parts.
        listener: None: torch's pipeline runtime tells FSDP2 itself.
    """

    listener = None

    def __init__(
        self, config: TrainerConfig, mesh: Mesh, stages: Sequence[Stage], comm: Communicator
    ) -> None:
        groups = open_shard_groups(mesh, config.data_parallel.shard_ranks)
        for stage in stages:
            _shard_stage(stage, groups, config, mesh, comm)
        self._parameters = [parameter for stage in stages for parameter in stage.parameters()]
        self.optimizer = build_optimizer(config.train, self._parameters)
        self._copies = groups.replicate.size
        self._shard = groups.shard
        self._tp, self._comm = mesh.tp, comm
        self._summands = by_reduction(self._parameters).get(Reduction.REPLICAS_AND_TP, ())
        self._norm = gradient_norm(config.train.max_grad_norm, mesh, comm)

    def start_step(self) -> None:
        """Forget the gradients of the last step."""
        self.optimizer.zero_grad()

    def finish(self) -> None:
        """Return when gradients that tensor-parallel ranks have summands of are summed over them.

        The sums over the replicas are there: the pipeline's step ends with them.
        """
        if not self._summands:
            return
        gradients = [_gradient(parameter) for parameter in self._summands]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._comm.all_reduce(flat, self._tp).wait()
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, total in zip(gradients, torch.split(flat, sizes), strict=True):
            gradient.copy_(total.view_as(gradient))

    def update(self) -> Tensor | None:
        """Clip, and update the weights; return the gradient's norm if it is wanted."""
        norm = None
        if self._norm is not None:
            norm = self._norm.clip(
                [
                    Piece(_gradient(p), self._copies * copies_over(Axis.TP, p, self._tp.size))
                    for p in self._parameters
                ]
            )
        self.optimizer.step()
        return norm

    def settle(self) -> None:
        """Do nothing: the parts are what the optimizer left."""

    def trained_parts(self) -> list[TrainedPart]:
        """Return what this rank trains of each weight: its rows."""
        parts = []
        for parameter in self._parameters:
            # FSDP2 cuts the first dimension as torch.chunk does.
            rows = -(-parameter.shape[0] // self._shard.size)
            begin = min(rows * self._shard.position, parameter.shape[0])
            size = local_part(parameter).numel()
            start = begin * (parameter.numel() // parameter.shape[0])
            parts.append(TrainedPart(parameter, start, parameter, slice(0, size)))
        return parts

    def publish(self) -> None:
        """Do nothing: the next step gathers the weights from the parts."""

    def kept(self) -> KeptTensors:
        """Return what this rank keeps from step to step; within a step its weights are whole."""
        return KeptTensors(
            weights=self._parameters,
            masters=(),
            gradients=[p.grad for p in self._parameters if p.grad is not None],
            optimizer=optimizer_state(self.optimizer),
        )


def _shard_stage(
    stage: Stage,
    groups: ShardGroups,
    config: TrainerConfig,
    mesh: Mesh,
    comm: Communicator,
) -> None:
    """Shard a stage in place: its blocks, its edges, then the rest."""
    marks = {
        name: (split_axes(parameter), reduction_of(parameter), box_of(parameter))
        for name, parameter in stage.named_parameters()
    }
    settings: dict[str, Any] = {
        "mesh": _device_mesh(groups, mesh.device, mesh.replicas.ranks),
        # The runtime counts the weights as gathered until the end of the step.
        "reshard_after_forward": False,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=model_dtype(config), reduce_dtype=MASTER_DTYPE
        ),
    }
    parts: list[nn.Module] = [*stage.blocks]
    parts += [edge for edge in (stage.embedding, stage.head) if edge is not None]
    for part in [*parts, stage]:
        sharded = fully_shard(part, **settings)
        assert isinstance(sharded, FSDPModule)  # the overloads of fully_shard lose it
        # The loss is already a share of the global mean; a sum is what is left to do.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(enable=True)
        if part is not stage:
            sharded.set_custom_all_gather(_CountedAllGather(groups.shard, comm))
            sharded.set_custom_reduce_scatter(_CountedReduceScatter(groups.shard, comm))
    # The parts are new parameters, which know nothing of the old ones.
    for name, parameter in stage.named_parameters():
        axes, reduction, box = marks[name]
        reduced_over(reduction, mark_split(hold_box(parameter, box), *axes))


def _device_mesh(groups: ShardGroups, device: torch.device, replicas: Sequence[int]) -> DeviceMesh:
    """Return the replicas as FSDP2 wants them: one axis, or copies x parts."""
    # A mesh finds its own rank in a tensor, which has to have values.
    with real_tensors():
        if groups.replicate.size == 1:
            return DeviceMesh.from_group(groups.shard.handle, device.type, mesh_dim_names=("dp",))
        return DeviceMesh.from_group(
            [groups.replicate.handle, groups.shard.handle],
            device.type,
            mesh=torch.tensor(replicas).view(groups.replicate.size, groups.shard.size),
            mesh_dim_names=("dp_replicate", "dp_shard"),
        )


class _ThroughComm:
    """A collective of FSDP2 that the trainer's communicator issues, so that it is counted."""

    def __init__(self, group: MeshGroup, comm: Communicator) -> None:
        self._group = group
        self._comm = comm

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a buffer for the collective, of any shape."""
        return torch.empty(size, dtype=dtype, device=device)


class _CountedAllGather(_ThroughComm, AllGather):
    """FSDP2's all-gather through the trainer's communicator."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: FBT001, FBT002
    ) -> dist.Work | None:
        """Gather; ``group`` is the one that this was made for."""
        pending = self._comm.all_gather_into(output_tensor, input_tensor, self._group)
        if async_op:
            return pending.work
        pending.wait()
        return None


class _CountedReduceScatter(_ThroughComm, ReduceScatter):
    """FSDP2's reduce-scatter through the trainer's communicator."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002
    ) -> dist.Work | None:
        """Sum and scatter; ``group`` is the one that this was made for, ``op`` is a sum."""
        pending = self._comm.reduce_scatter_into(output_tensor, input_tensor, self._group)
        if async_op:
            return pending.work
        pending.wait()
        return None


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a parameter's gradient, which a step has made."""
    assert parameter.grad is not None
    return local_part(parameter.grad)

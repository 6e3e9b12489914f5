"""The process groups of one rank, made from a ParallelLayout.

Groups are values that are handed to whoever communicates in them; nothing here
is global. Every group carries its axis as ``group_desc``, by which profilers
and the probe recognise it.

A simulated mesh is a job of any number of ranks in one process, seen by one of them:
torch's fake process group takes part in every collective and moves nothing: it
returns at once, and buffers keep what they had. With tensors that have shapes
and no memory, nothing is lost by that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message
from meshscope.probe.schema.terms import Axis

from ..compat import FakeStore
from ..config.checks import in_range
from ..config.config import DeviceConfig
from ..config.elastic import LAUNCH, check_job_size
from ..config.launcher import number_of, text_of
from ..layout.group_members import Members, expert_groups, sum_groups
from .host_staging import StagedMessages, staged_operations

_ALONE = "tcp://127.0.0.1:0"
"""A free port: a job of one process meets nobody."""
_MOST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process stands in the job."""

    rank: int = 0
    """Global rank."""
    world_size: int = 1
    """Ranks of the job."""
    local_rank: int = 0
    """Rank on this host, which selects the GPU."""
    local_ranks: int = 1
    """Ranks on this host."""
    rendezvous: str = _ALONE
    """Where the ranks meet, as an ``init_method`` of torch.distributed."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Place:
        """Read what torchrun sets; without it the job is this one process.

        Raises:
            ConfigError: A variable is missing, no number, or out of range.
        """
        if "RANK" not in environment:
            return cls()
        # Who starts ranks by hand may leave out what is only known of one host.
        local = {"LOCAL_RANK": "0", **environment}
        local = {"LOCAL_WORLD_SIZE": str(_number(local, "LOCAL_RANK") + 1), **local}
        place = cls(
            rank=_number(environment, "RANK"),
            world_size=_number(environment, "WORLD_SIZE"),
            local_rank=_number(local, "LOCAL_RANK"),
            local_ranks=_number(local, "LOCAL_WORLD_SIZE"),
            rendezvous="env://",
        )
        if place.rank >= place.world_size:
            last = place.world_size - 1
            raise ConfigError(
                message("refused.value_outside", rank=place.rank, last=last),
                where="RANK",
                remedy=LAUNCH,
            )
        # Of these torch says nothing, or waits for ever at an address that is none.
        text_of(environment, "MASTER_ADDR", remedy=LAUNCH)
        in_range(_number(environment, "MASTER_PORT"), 1, _MOST_PORT, where="MASTER_PORT")
        return place


def _number(environment: Mapping[str, str], name: str) -> int:
    return number_of(environment, name, remedy=LAUNCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshGroup:
    """The ranks that share one axis with this rank."""

    axis: Axis
    """Direction of the mesh."""
    ranks: tuple[int, ...]
    """Global ranks, in order of their position on the axis."""
    position: int
    """This rank's place in ``ranks``."""
    handle: dist.ProcessGroup
    """The torch process group."""

    @property
    def size(self) -> int:
        """Return the number of members."""
        return len(self.ranks)


def group_of_one(rank: int) -> MeshGroup:
    """Return a group of one, in which nothing is ever exchanged and no torch group is needed."""
    nobody = cast("dist.ProcessGroup", dist.GroupMember.NON_GROUP_MEMBER)
    return MeshGroup(axis=Axis.OTHER, ranks=(rank,), position=0, handle=nobody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """One rank's view of the mesh."""

    layout: ParallelLayout
    """Sizes of the axes."""
    rank: int
    """Global rank."""
    device: torch.device
    """Where this rank computes."""
    tp: MeshGroup
    """Ranks that share this rank's layers."""
    pp: MeshGroup
    """The pipeline that this rank is a stage of."""
    dp: MeshGroup
    """Ranks with the same weights and other sequences."""
    cp: MeshGroup
    """Ranks that share this rank's sequences."""
    ep: MeshGroup
    """Ranks that share the experts of this rank's layers."""
    replicas: MeshGroup
    """Ranks with the same dense weights and other tokens: dp x cp."""
    replicas_and_tp: MeshGroup
    """The replicas of all tensor-parallel ranks."""
    expert_replicas: MeshGroup
    """Ranks with the same experts."""
    messages: StagedMessages | None = None
    """What brings messages through host memory; None where they go directly."""

    def is_reporter(self, last_stage_position: int) -> bool:
        """Return whether this rank prints and writes the losses: one of those with the last stage.

        Args:
            last_stage_position: Place on the pipeline axis of the rank that holds it.
        """
        on_last = self.pp.position == last_stage_position
        return on_last and self.tp.position == 0 and self.replicas.position == 0


@contextmanager
def open_mesh(layout: ParallelLayout, device: DeviceConfig, place: Place) -> Iterator[Mesh]:
    """Join the job, yield this rank's mesh, and leave together with all ranks.

    The barrier at the end keeps a fast rank from closing connections that a
    slower one still uses, which a launcher would count as a crash. It is left
    out after an error, when the other ranks may never come.

    Raises:
        ConfigError: The job has another number of ranks than the layout.
    """
    check_job_size(layout, place.world_size)
    torch_device = _torch_device(device, place)
    messages = StagedMessages(device.kind) if "message" in staged_operations(device) else None
    dist.init_process_group(
        device.backend,
        init_method=place.rendezvous,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=device.timeout_s),
        # gloo has no communicator of a device to open early.
        device_id=torch_device if device.backend == "nccl" else None,
    )
    try:
        if messages is not None:
            messages.install()
        yield replace(build_mesh(layout, place.rank, torch_device), messages=messages)
        dist.barrier()
    finally:
        if messages is not None:
            messages.remove()
        dist.destroy_process_group()


def _torch_device(device: DeviceConfig, place: Place) -> torch.device:
    """Return the device of this rank, and make it the current one."""
    if device.kind == "cpu":
        # One thread per rank: a rank stands for one device.
        torch.set_num_threads(1)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            message("refused.no_gpu"), where="device.kind", remedy=message("advice.device_cpu")
        )
    index = device_index(place, torch.cuda.device_count(), device.backend)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def device_index(place: Place, gpus: int, backend: str) -> int:
    """Return the GPU of a rank: its own, or over gloo one of those that ranks share in turn.

    Args:
        place: Where the rank stands.
        gpus: GPUs of this host, at least one.
        backend: What the ranks talk over.

    Raises:
        ConfigError: There are fewer GPUs than ranks, and the backend needs one for each.
    """
    if place.local_ranks > gpus and backend == "nccl":
        raise ConfigError(
            message("refused.gpu_for_each_rank", local_ranks=place.local_ranks, gpus=gpus),
            where="device.backend",
            remedy=message("advice.gloo_or_fewer_ranks", gpus=gpus),
        )
    if place.local_ranks > gpus and place.local_rank == 0:
        many = f"{gpus} GPUs in turn" if gpus > 1 else "1 GPU (cuda:0)"
        sys.stderr.write(f"{place.local_ranks} ranks of this host share {many} over {backend}\n")
    return place.local_rank % gpus


def build_mesh(layout: ParallelLayout, rank: int, device: torch.device) -> Mesh:
    """Create every group, in the same order on every rank, and return this rank's."""
    dp = own_group(layout.groups(Axis.DP), rank, Axis.DP)
    sums = {
        name: own_group(groups, rank, Axis.DP, description=name)
        for name, groups in sum_groups(layout).items()
    }
    replicas = sums.get("dp_cp", dp)
    return Mesh(
        layout=layout,
        rank=rank,
        device=device,
        tp=own_group(layout.groups(Axis.TP), rank, Axis.TP),
        pp=own_group(layout.groups(Axis.PP), rank, Axis.PP),
        dp=dp,
        cp=own_group(layout.groups(Axis.CP), rank, Axis.CP)
        if layout.cp > 1
        else group_of_one(rank),
        ep=own_group(expert_groups(layout), rank, Axis.EP) if layout.ep > 1 else group_of_one(rank),
        replicas=replicas,
        replicas_and_tp=sums.get("dp_cp_tp", replicas),
        expert_replicas=sums.get("expert_dp", replicas),
    )


def own_group(
    groups: Iterable[Members], rank: int, axis: Axis, *, description: str = ""
) -> MeshGroup:
    """Create all groups of an axis, as every rank must, and return this rank's."""
    own: MeshGroup | None = None
    for ranks in groups:
        handle = dist.new_group(list(ranks), group_desc=description or axis.value)
        if rank in ranks:
            own = MeshGroup(axis=axis, ranks=ranks, position=ranks.index(rank), handle=handle)
    if own is None:
        raise ConfigError(message("refused.rank_outside_mesh", rank=rank), where="layout")
    return own


@contextmanager
def open_simulated_mesh(layout: ParallelLayout, rank: int) -> Iterator[Mesh]:
    """Yield the mesh as one rank sees it; there are no other ranks.

    Its device is a CPU: torch without CUDA cannot even pretend to have another.

    Args:
        layout: The mesh.
        rank: The rank, 0 to ``layout.world_size - 1``.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        yield build_mesh(layout, rank, torch.device("cpu"))
    finally:
        dist.destroy_process_group()

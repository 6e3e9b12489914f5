"""Another order of the ranks, in the words of the launchers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from math import prod

import numpy as np

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.model import ModelDescription

from ...formulas.flops import known_model
from ...tables.arrays import IntArray
from ...tables.trace import Trace
from .members import ranks_of_places

_MEGATRON_FLAGS = {"": ("pp", "dp", "cp", "tp"), "--use-tp-pp-dp-mapping": ("dp", "pp", "cp", "tp")}
"""Options of Megatron-LM's training scripts, none at first, and their order, slowest first."""


def host_list(layout: ParallelLayout, hosts: Sequence[str], order: str) -> list[str]:
    """Return the host on which each rank has to start, so that the mesh lies as in another order.

    The trainer keeps its own order: its rank at some coordinates starts in the place that the
    other order gives them. One host a line, this is what ``SLURM_HOSTFILE`` takes with
    ``srun --distribution=arbitrary``.
    """
    other = replace(layout, order=order)
    return [hosts[other.rank(**layout.coordinates(rank))] for rank in range(layout.world_size)]


def rank_file(by_rank: Sequence[str]) -> list[str]:
    """Return the lines of a rank file of Open MPI; slots count the ranks of each host."""
    used: dict[str, int] = {}
    lines = []
    for rank, host in enumerate(by_rank):
        lines.append(f"rank {rank}={host} slot={used.get(host, 0)}")
        used[host] = used.get(host, 0) + 1
    return lines


class Refusal(StrEnum):
    """Why Megatron-core gets no order."""

    STAGES = "stages"
    """It stops at the order: stages have to vary slowest where experts are shared otherwise than sequences."""
    EXPERTS = "experts"
    """It takes the order, and puts the experts elsewhere than where they are priced."""
    EXPERT_TENSORS = "expert_tensors"
    """It takes the order, and splits each expert among other ranks than those of a tensor group."""


def may_have_experts(trace: Trace) -> bool:
    """Return whether the model has experts, or may have: Megatron-core places them by a mesh of their own."""
    model = known_model(trace.run).model
    return not isinstance(model, ModelDescription) or model.experts > 0


def megatron_order(
    layout: ParallelLayout, order: str, experts: IntArray | None, *, has_experts: bool = False
) -> str | Refusal:
    """Return the argument ``order`` of Megatron-core's ``initialize_model_parallel``, or why there is none.

    It builds two meshes in one order: tp, cp, dp and pp, and for experts tp, ep, pp and dp. Both have to have
    the same pipelines. Where stages do not vary slowest, replicas have to be as many in both, too
    (megatron/core/parallel_state.py). Experts are taken to have the tensor parallelism of the rest, or none if they are
    shared along it.

    Args:
        layout: The mesh.
        order: Of the axes, slowest first.
        experts: As ``expert_places`` returns them.
        has_experts: Whether there are any, also where no ranks share them. In their mesh no axis of the sequence lies
            between the members of a tensor group.

    >>> megatron_order(ParallelLayout(tp=2, pp=2, dp=4), "pp-dp-cp-tp", None)
    'tp-cp-ep-dp-pp'
    >>> megatron_order(ParallelLayout(tp=2, pp=2, dp=4, ep=2), "dp-pp-cp-tp", None).value
    'stages'
    >>> megatron_order(ParallelLayout(tp=2, cp=2), "pp-dp-tp-cp", None, has_experts=True).value
    'expert_tensors'
    """
    fastest_first = order.split("-")[::-1]
    usual = (
        fastest_first.index("dp") if fastest_first[-1] == "pp" else fastest_first.index("cp") + 1
    )
    taken = False
    for place in sorted(range(len(fastest_first) + 1), key=lambda place: abs(place - usual)):
        names = [*fastest_first[:place], "ep", *fastest_first[place:]]
        if _is_taken(layout, names, experts):
            taken = True
            if _puts_experts(layout, names, experts, has_experts=has_experts):
                return "-".join(names)
    if not taken:
        return Refusal.STAGES
    return Refusal.EXPERTS if layout.ep > 1 else Refusal.EXPERT_TENSORS


def _meshes(
    layout: ParallelLayout, experts: IntArray | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes of the mesh, and of that of the experts; these have no tensor groups where they are shared along them."""
    rest = {"tp": layout.tp, "cp": layout.cp, "ep": 1, "dp": layout.dp, "pp": layout.pp}
    # Places have the tensor axis as the fastest.
    is_along = experts is not None and bool(np.ptp(experts % layout.tp, axis=1).any())
    tensor = 1 if is_along else layout.tp
    replicas = layout.tp * layout.dp * layout.cp // (tensor * layout.ep)
    return rest, {**rest, "tp": tensor, "cp": 1, "ep": layout.ep, "dp": replicas}


def _groups(sizes: dict[str, int], fastest_first: Sequence[str], axis: str) -> set[frozenset[int]]:
    """Return the groups along an axis of a mesh whose axes are ordered so."""
    names = fastest_first[::-1]
    ranks = np.arange(prod(sizes.values())).reshape([sizes[name] for name in names])
    found = np.moveaxis(ranks, names.index(axis), -1).reshape(-1, sizes[axis])
    return set(map(frozenset, found.tolist()))


def _is_taken(
    layout: ParallelLayout, fastest_first: Sequence[str], experts: IntArray | None
) -> bool:
    rest, expert = _meshes(layout, experts)
    if prod(rest.values()) != prod(expert.values()):
        return False
    is_last = fastest_first[-1] == "pp" or layout.pp == 1
    if not is_last and rest["dp"] != expert["dp"]:
        return False
    return _groups(rest, fastest_first, "pp") == _groups(expert, fastest_first, "pp")


def _puts_experts(
    layout: ParallelLayout,
    fastest_first: Sequence[str],
    experts: IntArray | None,
    *,
    has_experts: bool,
) -> bool:
    """Return whether Megatron-core puts the experts, and their tensor groups, where they are priced."""
    rest, expert = _meshes(layout, experts)
    is_split_alike = expert["tp"] == 1 or (
        _groups(rest, fastest_first, "tp") == _groups(expert, fastest_first, "tp")
    )
    if layout.ep == 1:
        return is_split_alike or not has_experts
    if experts is None:
        return False
    other = replace(layout, order="-".join(name for name in fastest_first[::-1] if name != "ep"))
    priced = set(map(frozenset, ranks_of_places(other)[experts].tolist()))
    return priced == _groups(expert, fastest_first, "ep") and is_split_alike


def megatron_flag(layout: ParallelLayout, order: str, experts: IntArray | None) -> str | None:
    """Return the option of Megatron-LM's training scripts that orders axes so; None where none does.

    They take no other order than these two, and the second without context and expert parallelism only. Axes of one rank
    may lie anywhere.

    >>> megatron_flag(ParallelLayout(tp=2, pp=2, dp=2), "dp-pp-cp-tp", None)
    '--use-tp-pp-dp-mapping'
    >>> megatron_flag(ParallelLayout(tp=2, pp=2, dp=2), "pp-dp-cp-tp", None)
    ''
    """
    mesh = [*mesh_shape(layout, order)]
    for flag, takes in _MEGATRON_FLAGS.items():
        refuses = flag and layout.cp * layout.ep > 1
        if not refuses and [axis for axis in takes if axis in mesh] == mesh:
            names = [*takes[::-1]]
            names.insert(names.index("cp") + 1, "ep")
            is_priced = _puts_experts(layout, names, experts, has_experts=True)
            return flag if is_priced else None
    return None


def expert_groups(layout: ParallelLayout, order: str, experts: IntArray | None) -> list[list[int]]:
    """Return the ranks that share the experts in an order; none where no experts are shared, or they are unknown."""
    if layout.ep == 1 or experts is None:
        return []
    found: list[list[int]] = ranks_of_places(replace(layout, order=order))[experts].tolist()
    return sorted(sorted(own) for own in found)


def mesh_shape(layout: ParallelLayout, order: str) -> dict[str, int]:
    """Return the axes and sizes of ``init_device_mesh``, slowest first; axes of one rank left out.

    >>> mesh_shape(ParallelLayout(tp=2, pp=4), "pp-dp-cp-tp")
    {'pp': 4, 'tp': 2}
    """
    names = [name for name in order.split("-") if name in MESH_AXES]
    return {name: getattr(layout, name) for name in names if getattr(layout, name) > 1}

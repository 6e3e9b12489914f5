"""Another order of the ranks, in the words of the launchers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout

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


def megatron_order(layout: ParallelLayout, order: str) -> str | None:
    """Return the argument ``order`` of Megatron-core's ``initialize_model_parallel``; None where it refuses the order.

    It builds two meshes in one order: tp, cp, dp and pp, and for experts tp, ep, pp and dp. Both have to have
    the same pipelines. Where stages do not vary slowest, replicas have to be as many in both, too
    (megatron/core/parallel_state.py). Experts are taken to have the tensor parallelism of the rest.

    >>> megatron_order(ParallelLayout(tp=2, pp=2, dp=4), "pp-dp-cp-tp")
    'tp-cp-ep-dp-pp'
    >>> megatron_order(ParallelLayout(tp=2, pp=2, dp=4, ep=2), "dp-pp-cp-tp")
    """
    fastest_first = order.split("-")[::-1]
    is_last = fastest_first[-1] == "pp" or layout.pp == 1
    if not is_last and layout.cp != layout.ep:
        return None
    # Beside cp, as many experts leave the stages where they are.
    place = fastest_first.index("dp") if is_last else fastest_first.index("cp") + 1
    fastest_first.insert(place, "ep")
    return "-".join(fastest_first)


def megatron_flag(layout: ParallelLayout, order: str) -> str | None:
    """Return the option of Megatron-LM's training scripts that orders axes so; None where none does.

    They take no other order than these two, and the second without context and expert parallelism only. Axes of one rank
    may lie anywhere.

    >>> megatron_flag(ParallelLayout(tp=2, pp=2, dp=2), "dp-pp-cp-tp")
    '--use-tp-pp-dp-mapping'
    >>> megatron_flag(ParallelLayout(tp=2, pp=2, dp=2), "pp-dp-cp-tp")
    ''
    """
    mesh = [*mesh_shape(layout, order)]
    for flag, takes in _MEGATRON_FLAGS.items():
        refuses = flag and layout.cp * layout.ep > 1
        if not refuses and [axis for axis in takes if axis in mesh] == mesh:
            return flag
    return None


def mesh_shape(layout: ParallelLayout, order: str) -> dict[str, int]:
    """Return the axes and sizes of ``init_device_mesh``, slowest first; axes of one rank left out.

    >>> mesh_shape(ParallelLayout(tp=2, pp=4), "pp-dp-cp-tp")
    {'pp': 4, 'tp': 2}
    """
    names = [name for name in order.split("-") if name in MESH_AXES]
    return {name: getattr(layout, name) for name in names if getattr(layout, name) > 1}

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


def megatron_order(order: str) -> str:
    """Return the argument ``order`` of Megatron-core's ``initialize_model_parallel``.

    >>> megatron_order("pp-dp-cp-tp")
    'tp-cp-ep-dp-pp'
    """
    fastest_first = order.split("-")[::-1]
    fastest_first.insert(fastest_first.index("dp"), "ep")
    return "-".join(fastest_first)


def megatron_flag(mesh: Sequence[str]) -> str | None:
    """Return the option of Megatron-LM's training scripts that orders axes so, slowest first; None where none does.

    They take no other order than these two. Axes of one rank may lie anywhere.

    >>> megatron_flag(["dp", "pp", "tp"])
    '--use-tp-pp-dp-mapping'
    >>> megatron_flag(["pp", "dp", "tp"])
    ''
    """
    for flag, order in _MEGATRON_FLAGS.items():
        if [axis for axis in order if axis in mesh] == [*mesh]:
            return flag
    return None


def mesh_shape(layout: ParallelLayout, order: str) -> dict[str, int]:
    """Return the axes and sizes of ``init_device_mesh``, slowest first; axes of one rank left out.

    >>> mesh_shape(ParallelLayout(tp=2, pp=4), "pp-dp-cp-tp")
    {'pp': 4, 'tp': 2}
    """
    names = [name for name in order.split("-") if name in MESH_AXES]
    return {name: getattr(layout, name) for name in names if getattr(layout, name) > 1}

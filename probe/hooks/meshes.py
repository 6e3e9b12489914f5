"""The mesh of the job, from the device mesh that the training code builds.

A ``DeviceMesh`` that covers all ranks and names its dimensions states the layout
outright, also where a dimension runs on the default group or where the group of one
dimension has no name of its own. A trainer may divide the same ranks several times: for
its data, its dense layers and its experts. The division along most axes is the layout;
a dimension of experts tells only how many ranks share them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from math import prod
from typing import Any

from ..job.run_facts import RunFacts
from ..schema.layout import MESH_AXES, ParallelLayout
from ..schema.terms import Axis
from ..watches.imports import ImportWatch
from .base import Capture, Patches
from .groups import axis_named

_MODULE = "torch.distributed.device_mesh"

Dimension = tuple[Axis, int, int]
"""Axis, size, and distance in ranks between neighbours."""


class MeshHook:
    """Learns the layout from meshes as they are made."""

    def __init__(self, capture: Capture, watch: ImportWatch, facts: RunFacts) -> None:
        self.source = capture.source("meshes")
        self._watch = watch
        self._facts = facts
        self._patches = Patches(self.source)
        self._layout: ParallelLayout | None = None
        self._experts = 1

    def install(self) -> None:
        """Wrap the constructor of meshes, now or when their module is imported."""
        self._watch.when_imported(_MODULE, self._wrap_class, self.source)

    def remove(self) -> None:
        """Restore the constructor."""
        self.source.on = False
        self._patches.restore()

    def _wrap_class(self) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        self._patches.replace(DeviceMesh, "__init__", self._wrap_init)

    def _wrap_init(self, original: Any) -> Any:
        source = self.source

        @wraps(original)
        def init(mesh: Any, *args: Any, **kwargs: Any) -> None:
            original(mesh, *args, **kwargs)
            if source.on:
                try:
                    self._met(mesh)
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    source.failed(error)

        return init

    def _met(self, mesh: Any) -> None:
        """Learn from a mesh; of several layouts of all ranks, the one with most axes."""
        import torch.distributed as dist

        names = mesh.mesh_dim_names
        if not names or not dist.is_initialized() or dist.get_rank() != 0:
            return
        names, sizes = tuple(names), tuple(mesh.mesh.shape)
        layout = None
        if mesh.size() == dist.get_world_size():
            layout = layout_of_mesh(names, sizes, mesh.mesh.flatten().tolist())
        is_finer = layout is not None and _axes_of(layout) > _axes_of(self._layout)
        experts = experts_of_mesh(names, sizes)
        if is_finer or experts > self._experts:
            self._layout = layout if is_finer else self._layout
            self._experts = max(experts, self._experts)
            if self._layout is not None:
                known = _with_experts(self._layout, self._experts)
                self._facts.learn({"layout": known.to_json()})


def _axes_of(layout: ParallelLayout | None) -> int:
    """Return along how many axes there is more than one rank."""
    return 0 if layout is None else sum(getattr(layout, axis) > 1 for axis in MESH_AXES)


def experts_of_mesh(names: tuple[str, ...], sizes: tuple[int, ...]) -> int:
    """Return how many ranks share the experts by a mesh of any ranks, 1 where it has none."""
    shared = [size for name, size in zip(names, sizes, strict=True) if axis_named(name) is Axis.EP]
    return max(shared, default=1)


def _with_experts(layout: ParallelLayout, experts: int) -> ParallelLayout:
    """Return the layout with its experts, where they are shared along data and context only."""
    return replace(layout, ep=experts if (layout.dp * layout.cp) % experts == 0 else 1)


def layout_of_mesh(
    names: tuple[str, ...], sizes: tuple[int, ...], ranks: list[int]
) -> ParallelLayout | None:
    """Return the layout that a mesh over all ranks states, or None where it states none.

    Two dimensions of one axis (replicated and sharded data parallelism) count as one
    where they lie next to each other over the ranks.

    Args:
        names: One for each dimension.
        sizes: Ranks along each dimension.
        ranks: Global ranks in row-major order of the dimensions.
    """
    dimensions: list[Dimension] = []
    for at, (name, size) in enumerate(zip(names, sizes, strict=True)):
        if size == 1:
            continue
        axis = axis_named(name)
        if axis is None or axis not in MESH_AXES:
            return None
        dimensions.append((axis, size, ranks[prod(sizes[at + 1 :])] - ranks[0]))
    dimensions.sort(key=lambda dimension: -dimension[2])
    joined = _joined(dimensions)
    present = [axis for axis, _, _ in joined]
    if len(set(present)) < len(present) or not _fills_the_world(dimensions, sizes, ranks):
        return None
    rest = [Axis(name) for name in MESH_AXES if name not in present]
    return ParallelLayout(
        **{axis.value: size for axis, size, _ in joined},
        order="-".join([*present, *rest]),
    )


def _joined(dimensions: list[Dimension]) -> list[Dimension]:
    """Return the dimensions, slowest first, with neighbours of one axis made one."""
    joined: list[Dimension] = []
    for axis, size, distance in dimensions:
        if joined and joined[-1][0] is axis and joined[-1][2] == size * distance:
            joined[-1] = (axis, joined[-1][1] * size, distance)
        else:
            joined.append((axis, size, distance))
    return joined


def _fills_the_world(dimensions: list[Dimension], sizes: tuple[int, ...], ranks: list[int]) -> bool:
    """Tell whether the mesh numbers all ranks as digits, each dimension a digit of its own.

    Args:
        dimensions: Those of more than one rank, slowest first.
        sizes: Ranks along each dimension, in the order of the mesh.
        ranks: Global ranks in row-major order of the mesh.
    """
    weight = 1
    for _, size, distance in reversed(dimensions):
        if distance != weight:
            return False
        weight *= size
    expected = [0]
    for at, size in enumerate(sizes):
        distance = ranks[prod(sizes[at + 1 :])] if size > 1 else 0
        expected = [base + index * distance for base in expected for index in range(size)]
    return ranks == expected

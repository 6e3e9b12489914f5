"""Which groups of ranks may wait for one another: those of the mesh, or the recorded ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

from meshscope.probe.schema.layout import MESH_AXES
from meshscope.probe.schema.terms import Axis

from ...tables.arrays import IntArray
from ...tables.trace import Trace

ENDS = "pipeline ends"
"""The family of first and last stages."""
WORLD = "world"
AXIS = {axis.value: axis.value for axis in Axis} | {ENDS: Axis.PP.value}
"""Axis by which waiting in a join of a family is counted; the others are of several axes."""


def families_of(trace: Trace, ranks: IntArray) -> dict[str, dict[int, int]]:
    """Return the candidates: a label a rank, equal for the members of a group; the smallest first.

    Along each axis of the mesh and each two of them, and both ends of each pipeline; or the recorded groups of an axis, where no mesh
    is known. And all ranks.
    """
    families: dict[str, dict[int, int]] = {}
    if trace.layout is not None:
        places = {int(rank): trace.layout.coordinates(int(rank)) for rank in ranks}
        for axes in (*((axis,) for axis in MESH_AXES), *combinations(MESH_AXES, 2)):
            rest = [axis for axis in MESH_AXES if axis not in axes]
            keys = [tuple(places[int(rank)][axis] for axis in rest) for rank in ranks]
            families["+".join(axes)] = dict(zip(ranks.tolist(), _numbered(keys), strict=True))
        families[ENDS] = _ends_of_pipelines(families["pp"], places, trace.layout.pp)
    else:
        groups = trace.frame("group")
        for axis, recorded in groups.groupby(groups["axis"].astype(str))["ranks"]:
            own = {int(rank): n for n, ranks_of in enumerate(recorded) for rank in ranks_of}
            families[str(axis)] = {rank: own.get(rank, -1 - rank) for rank in ranks.tolist()}
    families[WORLD] = dict.fromkeys(ranks.tolist(), 0)
    by_size = sorted(families.items(), key=lambda item: -len(set(item[1].values())))
    seen: dict[tuple[int, ...], tuple[str, dict[int, int]]] = {}
    for axis, labels in by_size:
        members = tuple(_numbered([labels[rank] for rank in ranks.tolist()]))
        if len(set(members)) < len(ranks):
            seen.setdefault(members, (axis, labels))
    return dict(seen.values())


def _ends_of_pipelines(
    pipelines: dict[int, int], places: dict[int, dict[str, int]], stages: int
) -> dict[int, int]:
    """Return the first and last stage of each pipeline as a group: they share an embedding."""
    return {
        rank: number if places[rank]["pp"] in (0, stages - 1) else -1 - rank
        for rank, number in pipelines.items()
    }


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return [number[key] for key in keys]

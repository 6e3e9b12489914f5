"""Ranks that stand for others: one is recorded of each group that works in lock-step.

Some tools record one rank of each tensor- or context-parallel group. What it does inside of its
passes it does with the others of the group, so that a slow one may be any of them.
"""

from __future__ import annotations

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.terms import Axis

from ..tables.trace import Trace, differ_without
from ..wording.message import Message, message

_NAMES = {Axis.TP.value: "tensor-parallel", Axis.CP.value: "context-parallel"}
"""Axes along which ranks work in lock-step."""


def stood_for(trace: Trace, rank: int) -> tuple[int, ...]:
    """Return the ranks of its unit that a recorded rank stands for; none where they are recorded."""
    layout = trace.layout
    if layout is None or rank >= layout.world_size:
        return ()
    own, ranks = layout.coordinates(rank), [rank]
    for axis in _axes_of_units(trace, layout):
        sizes = range(getattr(layout, axis))
        ranks = [
            layout.rank(**layout.coordinates(one) | {axis: at}) for one in ranks for at in sizes
        ]
    assert layout.rank(**own) in ranks
    return tuple(sorted(set(ranks) - set(trace.ranks)))


def unit_words(trace: Trace, rank: int) -> Message:
    """Return a rank, with those of its unit that it may be as well: ``Rank 4 or a context-parallel peer (rank 5)``."""
    others = stood_for(trace, rank)
    if not others or trace.layout is None:
        return message("unit.rank", rank=rank)
    axes = [_NAMES[axis] for axis in _axes_of_units(trace, trace.layout)]
    return message("unit.stands_for", rank=rank, axes=axes, others=list(others))


def _axes_of_units(trace: Trace, layout: ParallelLayout) -> list[str]:
    """Return the axes of lock-step groups of which one rank each is recorded."""
    inside = [rank for rank in trace.ranks if rank < layout.world_size]
    return [
        axis
        for axis in MESH_AXES
        if axis in _NAMES and getattr(layout, axis) > 1 and differ_without(layout, axis, inside)
    ]

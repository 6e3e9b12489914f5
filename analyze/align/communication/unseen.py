"""Axes of the mesh along which nothing was recorded, although their ranks must communicate.

A library that sends past the hooks, or a reader that does not know its records, leaves no row.
Ranks wait there all the same: their waiting would be work of their own, and the one that
waits for a slow rank would be called slow as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.terms import Axis, CollectiveKind, StepDetail

from ...tables.trace import Trace, differ_without
from ...wording.limits import Limit
from ...wording.message import message
from ..steps.windows import StepWindows
from .events import CommunicationEvents

INSIDE_SPANS = frozenset({Axis.TP.value, Axis.CP.value, Axis.EP.value})
"""Axes whose operations lie inside the forward and the backward pass of a rank."""
_TOGETHER = ({Axis.DP.value, Axis.CP.value}, {Axis.TP.value, Axis.CP.value})
"""Axes that one group may span and still do the work of each: gradients are summed over replicas
and parts of a sequence at once. A group of all ranks, for a loss or a barrier, tells of no axis."""


def unseen_axes(trace: Trace, windows: StepWindows, events: CommunicationEvents) -> tuple[str, ...]:
    """Return the axes of the layout along which the analysed steps hold no operation.

    None where no layout is known, or where it is known that single operations were not recorded.
    """
    layout, frame = trace.layout, events.frame
    if layout is None or windows.detail is not StepDetail.FULL:
        return ()
    expected = _recorded_along(layout, trace.ranks)
    seen = set(frame["axis"].cat.categories)
    if seen.issuperset(expected):
        return ()
    for ranks in _members(trace, events):
        varying = _varying(layout, ranks)
        if len(varying) == 1 or any(varying <= together for together in _TOGETHER):
            seen |= varying
    if CollectiveKind.ALL_TO_ALL.value in set(frame["kind"].cat.categories):
        seen.add(Axis.EP.value)
    return tuple(axis for axis in expected if axis not in seen)


def _recorded_along(layout: ParallelLayout, ranks: Sequence[int]) -> list[str]:
    """Return the axes along which recorded ranks differ, and in nothing else.

    Where one rank is recorded of each group, it stands for the group: what it does with the others
    is part of its passes. Experts are shared by ranks of the data and context axes.
    """
    inside = [rank for rank in ranks if rank < layout.world_size]
    along = [axis for axis in MESH_AXES if not differ_without(layout, axis, inside)]
    if layout.ep > 1 and not {Axis.DP.value, Axis.CP.value}.isdisjoint(along):
        along.append(Axis.EP.value)
    return along


def unseen_limit(trace: Trace, axes: tuple[str, ...]) -> Limit:
    """Return what the capture cannot tell without these axes, and what to do."""
    assert trace.layout is not None
    sizes = [
        message("unknown.axis_of", axis=axis, size=int(getattr(trace.layout, axis)))
        for axis in axes
    ]
    return message("unknown.unseen_axes", axes=sizes)


def _members(trace: Trace, events: CommunicationEvents) -> Iterator[tuple[int, ...]]:
    """Yield the ranks of every group in use, and the two ends of every link."""
    frame = events.frame
    groups = trace.frame("group")
    used = set(frame.loc[~frame["is_p2p"], "group_id"].unique())
    for name, ranks in zip(groups["group_id"].astype(str), groups["ranks"], strict=True):
        if name in used:
            yield tuple(map(int, ranks))
    for link in frame["link"].cat.categories:
        if link:
            source, _, target = str(link).partition("->")
            yield int(source), int(target)


def _varying(layout: ParallelLayout, ranks: tuple[int, ...]) -> set[str]:
    """Return the axes along which these ranks differ; none if some are outside of the mesh."""
    if not ranks or min(ranks) < 0 or max(ranks) >= layout.world_size:
        return set()
    places = [layout.coordinates(rank) for rank in ranks]
    return {axis for axis in MESH_AXES if len({place[axis] for place in places}) > 1}

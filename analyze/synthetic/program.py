"""The operations of one step, and the replay graph over them.

All members and lanes of a pipeline position run the same operations: receive what
a pass needs, then for each segment compute and synchronise with the inner axes. An
operation is a node per member; a collective is one node for each group, because all
members leave it together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..formulas.schedules import Plan, make_plan
from ..formulas.schedules.engine import Graph, build_graph
from ..tables.arrays import IntArray
from .job import INNER_AXES, SyntheticJob
from .mesh import Mesh

RECEIVE, COMPUTE, COLLECTIVE = 0, 1, 2
"""What an operation is; a collective of inner axis a is ``COLLECTIVE + a``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgram:
    """Operations in program order, pipeline rank by pipeline rank, and their graph.

    Edges are, in this order: previous operation to operation (one per operation and
    member), then sender to receiver (one per receive and member).
    """

    plan: Plan
    axes: tuple[str, ...]
    """Inner axes of more than one rank."""
    kind: IntArray
    """RECEIVE, COMPUTE, or COLLECTIVE + position in ``axes``."""
    row: IntArray
    """Pass (row of the plan) of each operation."""
    first: IntArray
    """First operation of each pass that is no receive."""
    last: IntArray
    """Last operation of each pass."""
    node: IntArray
    """``(operations, members)``."""
    before: IntArray
    """Node before each operation, ``(operations, members)``."""
    graph: Graph

    @property
    def rank(self) -> IntArray:
        """Return the pipeline rank of each operation."""
        return np.asarray(self.plan.rank[self.row])

    @property
    def receives(self) -> IntArray:
        """Return the operations that receive."""
        return np.flatnonzero(self.kind == RECEIVE)

    @property
    def needed(self) -> IntArray:
        """Return, for each receive, the last operation of the pass that it needs."""
        return np.asarray(self.last[self.plan.needs[self.row[self.receives]]])


def make_program(job: SyntheticJob, mesh: Mesh) -> StepProgram:
    """Return the program of a step of a job.

    Raises:
        ConfigError: The schedule does not fit the layout.
    """
    layout = job.layout
    plan = make_plan(job.schedule, layout.pp, job.microbatches, layout.vpp)
    axes = tuple(axis for axis in INNER_AXES if getattr(layout, axis) > 1)
    body = np.tile(COMPUTE + np.arange(1 + len(axes)), job.segments)
    size = len(body) + plan.crosses
    last = np.cumsum(size) - 1
    first = last - len(body) + 1
    kind = np.zeros(int(size.sum()), np.int64)
    kind[first[:, None] + np.arange(len(body))] = body
    row = np.repeat(np.arange(len(plan)), size)
    node, count = _nodes(kind, axes, mesh)
    head = np.append(True, plan.rank[row][1:] != plan.rank[row][:-1])
    before = np.roll(node, 1, axis=0)
    before[head] = count + np.arange(layout.pp * mesh.members).reshape(layout.pp, -1)
    receives = np.flatnonzero(kind == RECEIVE)
    source = np.concatenate([before, node[last[plan.needs[row[receives]]]]]).ravel()
    target = np.concatenate([node, node[receives]]).ravel()
    nodes = np.zeros(count + layout.pp * mesh.members)
    return StepProgram(
        plan=plan,
        axes=axes,
        kind=kind,
        row=row,
        first=first,
        last=last,
        node=node,
        before=before,
        graph=build_graph(source, target, nodes, nodes),
    )


def _nodes(kind: IntArray, axes: tuple[str, ...], mesh: Mesh) -> tuple[IntArray, int]:
    """Return the node of every operation and member, and how many there are."""
    alone = np.arange(mesh.members)
    place = np.array([alone, alone, *(mesh.member_group[axis] for axis in axes)])
    size = place.max(axis=1) + 1
    end = np.cumsum(size[kind])
    return (end - size[kind])[:, None] + place[kind], int(end[-1])

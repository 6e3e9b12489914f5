"""Programs that only run forward: an inference engine, or an evaluation. They have no gradients to reduce."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.terms import KernelCategory, SpanKind

from ...tables.trace import Trace

_BACKWARD = re.compile(r"autograd::engine::|Backward\d*$|backward")
"""Operators of a backward pass: nodes of the autograd graph, and backward kernels of libraries."""
_OF_TRAINING = pa.array([SpanKind.BACKWARD.value, SpanKind.OPTIMIZER.value])
_LEAST_LAUNCHED = 0.5
"""Share of the computing kernels whose operators are recorded, so that others would have been seen."""


def lacks_backward(trace: Trace) -> bool:
    """Return whether operators were recorded, and none of a backward pass or an optimizer.

    The rank with the lowest number stands for all, because all run the same program.
    """
    if not trace.ranks or not trace.row_count("op"):
        return False
    rank = trace.ranks[0]
    if trace.row_count("span"):
        kinds = trace.rank_table("span", rank, ["kind"])["kind"]
        if pc.any(pc.is_in(_text(kinds), _OF_TRAINING)).as_py():
            return False
    used = pc.unique(trace.rank_table("op", rank, ["name_id"])["name_id"])
    names = trace.rank_table("name", rank, ["name_id", "name"])
    own = names.filter(pc.is_in(names["name_id"], used))["name"].to_pylist()
    return bool(own) and not any(_BACKWARD.search(str(name)) for name in own)


def launches_by_operators(trace: Trace) -> bool:
    """Return whether most computing kernels of the lowest rank were launched by recorded operators.

    Kernels of a replayed graph are not: it may hold a backward pass.
    """
    kernels = trace.rank_table("kernel", trace.ranks[0], ["category", "op_id"])
    compute = pc.equal(_text(kernels["category"]), KernelCategory.COMPUTE.value)
    of_operator = pc.and_(compute, pc.greater_equal(kernels["op_id"], 0))
    every = pc.sum(compute).as_py() or 0
    return (pc.sum(of_operator).as_py() or 0) > _LEAST_LAUNCHED * every


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string()) if pa.types.is_dictionary(column.type) else column

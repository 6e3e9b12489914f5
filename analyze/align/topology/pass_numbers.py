"""Microbatches of the passes of a pipeline that was written by hand.

Outside of known schedules the probe counts backward passes: a forward gets the number of those that
its step has finished. That is right where passes take turns. In a pipeline the forwards
run ahead; their order tells then.
"""

from __future__ import annotations

import pyarrow as pa

from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import SpanKind

from ...tables.trace import Trace

_PASSES = (SpanKind.FORWARD.value, SpanKind.BACKWARD.value)


def with_passes_numbered(trace: Trace) -> Trace:
    """Return the trace with the passes of unknown stages numbered by their order in the step.

    Only in jobs that send between ranks, and in steps with as many forwards as backwards: a
    model that is called twice a microbatch, or to evaluate, is left as it is.
    """
    if not (trace.row_count("p2p") and trace.row_count("span")):
        return trace
    table = trace.tables["span"]
    spans = table.select(["rank", "step", "kind", "start_ns", "stage", "microbatch"]).to_pandas()
    passes = spans[spans["kind"].isin(_PASSES) & (spans["stage"] < 0)].copy()
    if passes.empty:
        return trace
    passes["kind"] = passes["kind"].astype(str)
    in_step = ["rank", "step"]
    is_forward = passes["kind"] == SpanKind.FORWARD.value
    surplus = (is_forward * 2 - 1).groupby([passes[key] for key in in_step]).transform("sum")
    ordered = passes[surplus == 0].sort_values("start_ns")
    numbers = ordered.groupby([*in_step, "kind"]).cumcount()
    spans.loc[ordered.index, "microbatch"] = numbers.astype(spans["microbatch"].dtype)
    column = pa.array(spans["microbatch"].to_numpy())
    numbered = table.set_column(table.column_names.index("microbatch"), "microbatch", column)
    return trace.with_tables({"span": TABLES["span"].conform(numbered)})

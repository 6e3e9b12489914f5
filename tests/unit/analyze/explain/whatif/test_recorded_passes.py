"""What a pass took, as ranks record it: whole, or in pieces."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from meshscope.analyze.explain.whatif.redesign import present_pipeline
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES


def pipeline():
    """Return a pipeline with a heavy head, two ranks a stage."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=4),
        layers=(4, 4, 4, 4),
        steps=3,
        microbatches=8,
        costs=Costs(head_ns=8_000_000),
    )
    return generate(job)[0]


def in_pieces(trace):
    """Return the capture with the forwards of the last stage as two spans: its layers, its loss."""
    spans = trace.tables["span"].to_pandas()
    cut = (spans["kind"].astype(str) == "forward") & (spans["stage"] == spans["stage"].max())
    first, second = spans[cut].copy(), spans[cut].copy()
    first["dur_ns"] = first["dur_ns"] * 9 // 10
    second["start_ns"] = second["start_ns"] + first["dur_ns"]
    second["dur_ns"] = second["dur_ns"] - first["dur_ns"]
    if "event_id" in spans:
        second["event_id"] = spans["event_id"].max() + 1 + np.arange(len(second))
    whole = pd.concat([spans[~cut], first, second], ignore_index=True)
    table = TABLES["span"].conform(pa.Table.from_pandas(whole, preserve_index=False))
    return replace(trace, tables={**trace.tables, "span": table})


def test_a_pass_in_pieces_takes_what_they_take_together():
    """Fails when the last stage, whose loss is a piece of its own, counts at half its cost."""
    whole = present_pipeline(measure(pipeline())).centre_ns
    pieces = present_pipeline(measure(in_pieces(pipeline()))).centre_ns
    assert pieces == pytest.approx(whole, rel=1e-3)

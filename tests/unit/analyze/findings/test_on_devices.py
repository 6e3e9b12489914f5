"""A job whose hosts run ahead of their devices, recorded by events on the streams."""

import pandas as pd
import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture

from meshscope.analyze import diagnose
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

AHEAD = 10
"""The host launches a step in a tenth of the time that its device takes."""


def on_devices(trace: Trace) -> Trace:
    """Return a job as the level `kernels` records it over NCCL: hosts say when they launched."""
    steps = trace.tables["step"].to_pandas().set_index(["rank", "step"])["start_ns"]

    def launched(frame, times):
        begin = steps.reindex(pd.MultiIndex.from_frame(frame[["rank", "step"]])).to_numpy()
        return begin + (times.to_numpy() - begin) // AHEAD

    spans = trace.tables["span"].to_pandas()
    begin, end = spans["start_ns"], spans["start_ns"] + spans["dur_ns"]
    spans["device_start_ns"], spans["device_dur_ns"] = begin, spans["dur_ns"]
    spans["start_ns"], until = launched(spans, begin), launched(spans, end)
    spans["dur_ns"] = until - spans["start_ns"]
    frames = {"span": spans}
    for name in ("collective", "p2p"):
        frames[name] = trace.tables[name].to_pandas()
        frames[name]["issue_ns"] = launched(frames[name], frames[name]["issue_ns"])
        frames[name]["source"] = "device_blocking"
    tables = {
        name: TABLES[name].conform(pa.Table.from_pandas(frame, preserve_index=False))
        for name, frame in frames.items()
        if len(frame)
    }
    return Trace(
        path=trace.path,
        run={**trace.run, "device_name": "NVIDIA H200"},
        layout=trace.layout,
        ranks=trace.ranks,
        tables={**trace.tables, **tables},
    )


def job(slow_rank):
    """Return TP2 x PP2 x DP2 in which one rank takes half as long again."""

    def work(kind, rank, step, microbatch):
        base = 10 * MS if kind == "forward" else 20 * MS
        return base * 3 // 2 if rank == slow_rank else base

    layout = ParallelLayout(tp=2, pp=2, dp=2)
    return capture(Job(layout=layout, microbatches=6, steps=8), work)


@pytest.mark.parametrize("slow_rank", [0, 5, None])
def test_devices_are_diagnosed_as_hosts_are(slow_rank):
    """Fails when a job over NCCL gets no causes, or those of its launches."""
    expected, found = diagnose(job(slow_rank)), diagnose(on_devices(job(slow_rank)))
    assert found.findings
    assert [(own.kind, str(own.claim)) for own in found.findings] == [
        (own.kind, str(own.claim)) for own in expected.findings
    ]
    costs = [own.cost_frac for own in expected.findings]
    assert [own.cost_frac for own in found.findings] == pytest.approx(costs, abs=1e-6)
    assert any(
        "Spans and waits were timed on the NVIDIA H200" in limit for limit in map(str, found.limits)
    )


def test_launches_alone_name_nobody():
    """Fails when hosts that run ahead are compared as if they had computed."""
    launches = on_devices(job(5))
    for name in ("collective", "p2p"):
        frame = launches.tables[name].to_pandas()
        frame[["end_ns", "wait_start_ns", "wait_end_ns"]] = None
        frame["source"] = "host_issue"
        launches.tables[name] = TABLES[name].conform(
            pa.Table.from_pandas(frame, preserve_index=False)
        )
    found = diagnose(launches)
    assert not [own for own in found.findings if own.kind == "straggler_rank"]
    assert any("MESHSCOPE_LEVEL=kernels" in limit for limit in map(str, found.limits))

"""How users call the public names; it is type-checked, never run."""

from pathlib import Path

import pandas as pd

import meshscope
from meshscope import analyze, probe
from meshscope.probe.schema.layout import ParallelLayout

version: str = meshscope.__version__

settings = probe.ProbeConfig(sources=("collectives", "steps"), memory_every_steps=10)
session: probe.Session | None = probe.attach("runs/a", settings)
with probe.span("data_load"):
    pass
probe.step(tokens=4096)
probe.describe(layout=ParallelLayout(tp=2, pp=2, dp=2), schedule="1f1b", microbatches=8)
probe.detach()

trace: analyze.Trace = analyze.load_trace(Path("runs/a"))
layout: ParallelLayout | None = trace.layout
steps: pd.DataFrame = trace.frame("step")

result: analyze.Diagnosis = analyze.diagnose(trace)
mfu: float | None = result.utilization.mfu
bars: list[tuple[str, float]] = [(bar.name, bar.frac) for bar in result.waterfall]
shares: dict[str, float] = {cause.kind: cause.share_frac for cause in result.causes}
costs: list[float | None] = [finding.cost_frac for finding in result.findings]
rank: int | None = result.findings[0].where.get("rank")

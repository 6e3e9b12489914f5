"""The verb that writes a capture for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .opening import open_trace
from .options import DEFAULT_RUNS, RunPath, RunsOption, TopologyOption
from .output import emit


class Target(StrEnum):
    """A form that other tools read."""

    PERFETTO = "perfetto"
    CSV = "csv"
    HTA = "hta"


def export(
    path: RunPath,
    out: Annotated[
        Path, typer.Option(help="The file (perfetto; .gz compresses) or folder (csv, hta).")
    ],
    to: Annotated[Target, typer.Option(help="What to write.")] = Target.PERFETTO,
    topology_file: TopologyOption = None,
    runs: RunsOption = DEFAULT_RUNS,
) -> None:
    """Write a capture for other tools: a Perfetto timeline, tables as CSV, or profiler traces."""
    from meshscope.analyze.export import export_csv, export_hta, export_perfetto

    trace, _ = open_trace(path, topology_file, runs)
    if to is Target.PERFETTO:
        count = export_perfetto(trace, out)
        emit(f"{out}: {count:,} events\n\nNext: open it in the Perfetto UI")
        return
    files = export_csv(trace, out) if to is Target.CSV else export_hta(trace, out)
    emit("\n".join(str(file) for file in files))
    if to is Target.HTA:
        emit(f"\nNext: hta.trace_analysis.TraceAnalysis(trace_dir={str(out)!r})")

"""The verb that writes a capture for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from meshscope.probe.schema.message import message

from .open_capture import next_command, open_trace, workers
from .options import DEFAULT_RUNS, RunPath, RunsOption, StepsOption, TopologyOption, require_place
from .output import emit


class Target(StrEnum):
    """A form that other tools read."""

    PERFETTO = "perfetto"
    CSV = "csv"
    HTA = "hta"
    SUMMARIES = "summaries"


def export(
    path: RunPath,
    out: Annotated[
        Path, typer.Option(help="The file (perfetto; .gz compresses) or folder (all others).")
    ],
    to: Annotated[Target, typer.Option(help="What to write.")] = Target.PERFETTO,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
) -> None:
    """Write a capture for other tools: a Perfetto timeline, tables as CSV, or profiler traces.

    --to summaries writes what meshscope summarize found, without reading the records again.
    """
    from meshscope.analyze.output.export import export_csv, export_hta, export_perfetto

    require_place(out, is_file=to is Target.PERFETTO)
    if to is Target.SUMMARIES:
        _export_summaries(path, out, steps, topology_file)
        return
    opened = open_trace(path, topology_file, runs, steps)
    if to is Target.PERFETTO:
        count = export_perfetto(opened.trace, out)
        emit(f"{out}: {count:,} events\n\nNext: open it in the Perfetto UI")
        return
    files = export_csv(opened.trace, out) if to is Target.CSV else export_hta(opened.trace, out)
    emit("\n".join(str(file) for file in files))
    if to is Target.HTA:
        emit(f"\nNext: hta.trace_analysis.TraceAnalysis(trace_dir={str(out)!r})")
    else:
        emit(opened.next_command("diagnose"))


def _export_summaries(run: Path, out: Path, steps: str | None, topology_file: Path | None) -> None:
    from meshscope.analyze.output.export import export_summaries
    from meshscope.analyze.scale.store import read_summaries
    from meshscope.probe.schema.rundir import require_run

    if steps is not None or topology_file is not None:
        raise typer.BadParameter(str(message("usage.parts_of_summaries")))
    require_run(run)
    files = export_summaries(read_summaries(run), out)
    emit("\n".join(str(file) for file in files))
    emit(next_command("diagnose", run, "--workers", workers()))

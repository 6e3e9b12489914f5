"""The verb that turns other tools' traces into run directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .open_capture import next_command, open_trace, workers
from .options import DEFAULT_RUNS, RunsOption, TopologyOption, named_path
from .output import emit, say
from .progress import reading_progress

if TYPE_CHECKING:
    from meshscope.analyze.tables.trace import Trace


def ingest(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            parser=named_path,
            help="Traces of other tools, or runs. Files given together are one job; each "
            "folder or quoted glob is a job of its own.",
        ),
    ],
    runs: RunsOption = DEFAULT_RUNS,
    topology_file: TopologyOption = None,
    cycle: Annotated[
        int | None,
        typer.Option(
            "--cycle",
            metavar="N",
            min=1,
            help="Of a profiler whose schedule repeats, the cycle to read, from 1. By default the "
            "last one that most ranks have.",
        ),
    ] = None,
) -> None:
    """Turn other tools' traces into run directories, and list what was understood.

    A run of our own keeps its tables in its directory, if it is closed. What a topology file
    states is kept with the tables of other tools' traces.
    """
    from meshscope.analyze.read.source_files import jobs_of
    from meshscope.probe.schema.errors import MeshscopeError

    jobs = jobs_of(paths)
    if len(jobs) == 1:
        _ingest_job(jobs[0], runs, topology_file, cycle)
        return
    failed = 0
    for source in jobs:
        try:
            _ingest_job(source, runs, topology_file, cycle)
        except MeshscopeError as error:
            say(str(error))
            failed += 1
    if failed:
        raise typer.Exit(2)


def _ingest_job(
    source: list[Path], runs: Path, topology_file: Path | None, cycle: int | None
) -> None:
    """Ingest one job, and say what was understood of it."""
    from meshscope.analyze.load.ingest import understood
    from meshscope.probe.schema.rundir import is_run_directory

    if len(source) == 1 and is_run_directory(source[0]):
        # A run of ours does not keep what is stated about it.
        opened = open_trace(source[0], topology_file)
        trace, following = opened.trace, opened.next_command("diagnose")
    else:
        trace = _ingested(source, runs, topology_file, cycle)
        following = next_command("diagnose", trace.path)
    emit("\n".join(f"  {line}" for line in understood(trace)))
    emit(following)


def _ingested(
    source: list[Path], runs: Path, topology_file: Path | None, cycle: int | None
) -> Trace:
    """Ingest one job, keep what is stated about it, and say how fast that was."""
    from meshscope.analyze.align.topology.file import load_topology
    from meshscope.analyze.align.topology.kept import keep_topology
    from meshscope.analyze.load.ingest import Keeping
    from meshscope.analyze.load.ingest import ingest as read
    from meshscope.analyze.read.source_files import size_of
    from meshscope.probe.clock import now_ns

    if topology_file is not None:
        load_topology(topology_file)
    start_ns = now_ns()
    with reading_progress(size_of(*source)) as on_bytes:
        keeping = Keeping(runs_dir=runs, workers=workers(), on_bytes=on_bytes, cycle=cycle)
        result = read(source, keeping)
    seconds = (now_ns() - start_ns) / 1e9
    size = result.source_bytes / 1e6
    named = str(source[0]) if len(source) == 1 else f"{len(source)} files"
    emit(
        f"{named}: {size:,.1f} MB in {seconds:.2f} s ({size / seconds:,.0f} MB/s)"
        + (", known from before" if result.reused else "")
    )
    if topology_file is None:
        return result.trace
    return keep_topology(result.trace, topology_file)

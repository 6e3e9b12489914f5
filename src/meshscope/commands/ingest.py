"""The verb that turns other tools' traces into run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import emit


def ingest(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Traces of other tools: files or folders."),
    ],
    runs: Annotated[Path, typer.Option(help="Folder that gets the run directories.")] = Path(
        "meshscope_runs"
    ),
) -> None:
    """Turn other tools' traces into run directories, and say what was understood."""
    from meshscope.analyze.ingest import ingest as read
    from meshscope.analyze.ingest import understood
    from meshscope.probe.clock import now_ns

    for path in paths:
        start_ns = now_ns()
        result = read(path, runs)
        seconds = (now_ns() - start_ns) / 1e9
        size = result.source_bytes / 1e6
        emit(
            f"{path}: {size:,.1f} MB in {seconds:.2f} s ({size / seconds:,.0f} MB/s)"
            + (", known from before" if result.reused else "")
        )
        emit("\n".join(f"  {line}" for line in understood(result.trace)))
        emit(f"\nNext: meshscope diagnose {result.path}")

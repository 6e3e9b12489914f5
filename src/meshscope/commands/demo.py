"""The verb that shows everything at work on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Serve the dashboard after the diagnosis.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run and the truth; a new temporary one if not given."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the dashboard.")] = 8050,
) -> None:
    """Train 8 ranks with one slow rank, find it, and compare with the truth."""
    from meshscope.demo import run_demo

    result = run_demo(out)
    if serve:
        from meshscope.dashboard import serve as serve_dashboard

        serve_dashboard(result.runs_dir, port=port)

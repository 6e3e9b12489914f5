"""The verb that serves the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .opening import command_line


def dashboard(
    runs_dir: Annotated[
        Path, typer.Argument(metavar="RUNS_DIR", help="Folder of run directories.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8050,
    token: Annotated[
        str | None, typer.Option(help="Access token; made up and printed for a non-loopback host.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where a reverse proxy serves it, as https://cluster.example/meshscope/.",
        ),
    ] = None,
) -> None:
    """Browse runs: overview, findings, timeline, mesh, memory, kernels; compare two."""
    from meshscope.dashboard import serve
    from meshscope.probe.schema.errors import RunDirectoryError
    from meshscope.probe.schema.rundir import is_run_directory

    if is_run_directory(runs_dir):
        raise RunDirectoryError(
            "is one run, not a folder of runs",
            where=str(runs_dir),
            remedy=f"Run: {command_line('dashboard', runs_dir.resolve().parent)}",
        )
    serve(runs_dir, host=host, port=port, token=token, public=public_url)

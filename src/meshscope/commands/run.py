"""The verb that starts a job with the probe in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    command: Annotated[list[str], typer.Argument(help="The launch command, after --.")],
    runs: Annotated[Path, typer.Option(help="Folder that holds the run directories.")] = Path(
        "meshscope_runs"
    ),
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run; a time stamp if not given.")
    ] = None,
) -> None:
    """Run a launch command with the probe in every rank: meshscope run -- torchrun … train.py."""
    from meshscope.probe.launch import run as launch

    code = launch(command, runs, run_id=run_id)
    raise typer.Exit(code)

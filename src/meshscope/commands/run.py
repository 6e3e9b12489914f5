"""The verb that starts a job with the probe in it."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import DEFAULT_RUNS, RunsOption


def run(
    command: Annotated[list[str], typer.Argument(help="The launch command, after --.")],
    runs: RunsOption = DEFAULT_RUNS,
    run_id: Annotated[
        str | None,
        typer.Option(help="Name of the run, joined if it exists; a new one if not given."),
    ] = None,
    dormant: Annotated[
        bool, typer.Option("--dormant", help="Record only when `meshscope attach` asks for it.")
    ] = False,
    agent: Annotated[
        bool, typer.Option(help="Sample devices, network ports and the host beside the job.")
    ] = True,
    trace_on_suspicion: Annotated[
        bool,
        typer.Option(
            "--trace-on-suspicion", help="Have the agent record in depth when a rank stays slow."
        ),
    ] = False,
) -> None:
    """Run a launch command with the probe in every rank: meshscope run -- torchrun … train.py."""
    from meshscope.probe.launching.launch import run as launch

    options = ["--trace-on-suspicion"] if trace_on_suspicion else []
    code = launch(command, runs, run_id, dormant=dormant, agent_options=options if agent else None)
    raise typer.Exit(code)

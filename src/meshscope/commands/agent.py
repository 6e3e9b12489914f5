"""The verb that samples a node: devices, network ports and the host."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from meshscope.probe.agent.settings import AgentSettings


_TraceOption = Annotated[
    bool, typer.Option("--trace-on-suspicion", help="Record in depth when a rank stays slow.")
]
_CompactOption = Annotated[
    bool,
    typer.Option(
        "--compact",
        help="When the job has ended, keep its tables in few files, at the lowest priority.",
    ),
]


def agent(  # noqa: PLR0913 - every option of the verb
    run: Annotated[
        Path | None, typer.Option(help="Run directory to write to and whose ranks to follow.")
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between two samples.")] = 1.0,
    port: Annotated[
        int | None,
        typer.Option(help="Serve Prometheus metrics on this port of 127.0.0.1; 0 chooses one."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Also write every reading to this file, compressed.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Read such a file in place of this machine.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="End after so many seconds; else with the run.")
    ] = None,
    sysfs: Annotated[Path, typer.Option(help="Where sysfs is mounted.")] = Path("/sys"),
    trace_steps: Annotated[
        int, typer.Option(help="Steps of a deep trace that the agent asks for by itself.")
    ] = 3,
    trace_on_suspicion: _TraceOption = False,
    compact: _CompactOption = False,
    launcher: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Sample devices, network ports and the host of this node; one agent a node and run."""
    from meshscope.probe.agent.host_directory import AgentRunningError
    from meshscope.probe.agent.settings import AgentSettings
    from meshscope.probe.schema.message import message
    from meshscope.probe.schema.rundir import require_run

    if run is None and record is None and port is None:
        raise typer.BadParameter(str(message("usage.agent_for_nothing")))
    settings = AgentSettings(
        interval_s=interval,
        port=port,
        duration_s=duration,
        launcher_pid=launcher,
        trace_steps=trace_steps,
        trace_on_suspicion=trace_on_suspicion,
        sysfs=sysfs,
    )
    if run is not None:
        require_run(run)
    watched = _Watched(run, settings, record, replay)
    # One that is ended while it opens its files waits until it can do so in order.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        _sample(watched)
    except AgentRunningError:
        # One is enough where a job was started by several launchers on this node.
        if launcher is None:
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if compact and run is not None:
        from .at_rest import keep_tables

        keep_tables(run)


class _Watched(NamedTuple):
    """What an agent reads and where that goes."""

    run: Path | None
    settings: AgentSettings
    record: Path | None
    replay: Path | None


def _sample(watched: _Watched) -> None:
    from meshscope.probe.agent.agent import Agent

    run, settings, record, replay = watched
    found = Agent(run, settings, flops_of_run=_flops_of_run, record=record, replay=replay)
    try:
        found.run()
    finally:
        found.close()


def _flops_of_run(manifest: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the model FLOPs of a step and the peak of one device, None if not known.

    The formulas are those of the analyses, which are loaded only where they can be used.
    """
    model, tokens = manifest.get("model"), manifest.get("tokens_per_step")
    if not isinstance(model, dict) or not model or not isinstance(tokens, int):
        return None
    from meshscope.analyze.formulas.flops import flops_per_token, known_model
    from meshscope.analyze.formulas.peaks import datasheet_peak
    from meshscope.probe.schema.model.fields import model_text

    shape = known_model({**model, "model": model_text(model)}).model
    peak = manifest.get("peak_flops")
    if not isinstance(peak, int | float) or peak <= 0:
        known = datasheet_peak(str(manifest.get("device_name") or ""))
        peak = None if known is None else known[0]
    if shape is None or peak is None:
        return None
    return flops_per_token(shape) * tokens, float(peak)

"""The verb that follows a running job."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshscope.analyze.wording.command_line import command_line
from meshscope.probe.clock import now_ns, unix_ns

from .options import DEFAULT_RUNS, named_path, named_run
from .output import emit, say
from .processes import are_gone

if TYPE_CHECKING:
    from meshscope.analyze.output.watch import Event
    from meshscope.analyze.tables.trace import Trace

_SHARE = 0.2
"""Of one core that the looks take at most: behind a long look comes a longer rest."""
_LAST_STEP = (1 << 62) - 1


def watch(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", parser=named_path, help="A run directory, or the name of one in --runs."
        ),
    ],
    every: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="Seconds between two looks.")
    ] = 10.0,
    duration: Annotated[
        float | None, typer.Option("--for", min=0.0, help="End after so many seconds.")
    ] = None,
    runs: Annotated[
        Path, typer.Option(metavar="RUNS_DIR", envvar="MESHSCOPE_RUNS", help="Folder of runs.")
    ] = DEFAULT_RUNS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object a line, for programs.")
    ] = False,
) -> None:
    """Follow a running job: step time, MFU, ranks that become slow, who does not arrive, how it ends."""
    from meshscope.analyze.output.watch import Watch

    run = named_run(path, runs) or path
    watched, begun_s = Watch(), now_ns() / 1e9
    if not as_json:
        say(f"looks at {run} every {every:g} s; Ctrl-C ends this, the job goes on")
    while not watched.has_ended:
        look_s = now_ns() / 1e9
        # Before the reading: what a process wrote before it ended is in it.
        is_gone = are_gone(run)
        trace = _recorded(run, watched.next_step)
        if trace is not None:
            _require_run_of_probe(trace, run)
            for event in watched.events(trace, now_ns() / 1e9, is_gone=is_gone):
                emit(_line(event, as_json))
        took_s = now_ns() / 1e9 - look_s
        rest_s = max(every - took_s, took_s * (1 / _SHARE - 1))
        if duration is not None and now_ns() / 1e9 + rest_s > begun_s + duration:
            break
        if not watched.has_ended and not _rested(rest_s):
            break
    if not as_json and watched.next_step:
        emit(f"\nNext: {command_line('diagnose', run)}")


def _recorded(run: Path, first: int) -> Trace | None:
    """Return the run with its steps from ``first`` on; None while no rank has recorded.

    Raises:
        RunDirectoryError: There is no such run.
    """
    from meshscope.analyze.load.load import load_trace, most_rows
    from meshscope.probe.reader.wanted import Wanted
    from meshscope.probe.schema.errors import RunDirectoryError

    try:
        return load_trace(run, wanted=Wanted((first, _LAST_STEP), most_rows()))
    except RunDirectoryError:
        # The launcher makes the folder a moment before the first rank writes into it.
        if run.is_dir() and not any(run.glob("rank*")):
            return None
        raise


def _require_run_of_probe(trace: Trace, run: Path) -> None:
    """Refuse a trace of another tool: nothing more comes, and its job would be called silent.

    Raises:
        ConfigError: The probe did not write it.
    """
    from meshscope.probe.schema.errors import ConfigError
    from meshscope.probe.schema.message import message

    shown = trace.capabilities
    if not (shown.has_steps and shown.records_how_it_ended):
        raise ConfigError(
            message("refused.complete_trace"),
            where=str(run),
            remedy=message("advice.run_command", command=command_line("diagnose", run)),
        )


def _rested(rest_s: float) -> bool:
    """Wait; False where the person wants no more."""
    try:
        sleep(rest_s)
    except KeyboardInterrupt:
        return False
    return True


def _line(event: Event, as_json: bool) -> str:
    time_ns = unix_ns()
    if as_json:
        return _json_line({"time_unix_ns": time_ns, **event.to_json()})
    clock = datetime.fromtimestamp(time_ns / 1e9).astimezone()
    return f"{clock:%H:%M:%S}  {event.text}"


def _json_line(values: dict[str, Any]) -> str:
    import msgspec

    plain: str = msgspec.json.encode(values, enc_hook=lambda scalar: scalar.item()).decode()
    return plain

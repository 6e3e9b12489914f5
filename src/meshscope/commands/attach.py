"""The verb that switches recording on and off in a running job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshscope.probe.schema.message import message
from meshscope.probe.schema.printable import listed
from meshscope.probe.schema.terms import CaptureLevel

from .options import DEFAULT_RUNS, MOST_TIMEOUT_S, RunsOption, named_run
from .output import emit, say

if TYPE_CHECKING:
    from meshscope.probe.control.client import Endpoint
    from meshscope.probe.control.orders import Outcome


def attach(  # noqa: PLR0913 - one argument for each option
    run: Annotated[
        Path | None, typer.Option("--run", metavar="RUN", help="A run directory, or its name.")
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", min=1, help="One process of this host.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Stop recording; keep the sockets.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Stop recording and close the sockets.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Only report what the ranks do.")
    ] = False,
    level: Annotated[
        CaptureLevel | None, typer.Option("--level", help="Change how much is recorded.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=MOST_TIMEOUT_S, help="Seconds to wait.")
    ] = 30.0,
    runs: RunsOption = DEFAULT_RUNS,
    unsafe_gdb: Annotated[
        bool,
        typer.Option(
            "--unsafe-gdb",
            help="With --pid: use gdb, which stops the process for up to 16 s or longer.",
        ),
    ] = False,
) -> None:
    """Switch recording on in a running job, or off again: meshscope attach --run RUN."""
    _check_one_order(level=level, status=status, off=detach or remove)
    if pid is not None and (status or detach or remove):
        _require_socket(pid)
    endpoints = _endpoints(named_run(run, runs), pid, timeout, unsafe_gdb=unsafe_gdb)
    if level is not None and endpoints.here:
        outcome, clause = _change_level(endpoints.here, level, timeout)
    else:
        verb = "status" if status else "detach" if detach or remove else "attach"
        outcome, clause = _order(endpoints.here, verb, timeout, remove=remove)
    if pid is not None and outcome.failed:
        _refuse_ended(pid, endpoints.here)
    _report(outcome, clause)
    for line in endpoints.missing:
        say(line)
    raise typer.Exit(1 if endpoints.missing or outcome.failed or outcome.pending else 0)


def _refuse_ended(pid: int, here: list[Endpoint]) -> None:
    """Say that a process has ended that answered no more, and take away what it left."""
    from meshscope.probe.control.finding import has_ended, remove_of_ended
    from meshscope.probe.control.injection import ENDED_REMEDY
    from meshscope.probe.schema.errors import ConfigError

    if has_ended(pid):
        remove_of_ended(pid, os.environ, *here)
        raise ConfigError(
            message("refused.process_ended", pid=pid), where="attach", remedy=ENDED_REMEDY
        )


def _change_level(here: list[Endpoint], level: str, timeout_s: float) -> tuple[Outcome, str]:
    from meshscope.probe.control.orders import change_level

    first_step, outcome = change_level(here, level, timeout_s)
    return outcome, f"at level {level} from step {first_step} on"


def _order(
    here: list[Endpoint], verb: str, timeout_s: float, *, remove: bool
) -> tuple[Outcome, str]:
    """Return what the ranks answered, and what those that follow do now."""
    from meshscope.probe.control.orders import order

    fields = {"remove": remove} if verb == "detach" else {}
    state = {"status": "", "detach": "off", "attach": "recording"}[verb]
    return order(here, verb, fields, (state,) if state else (), timeout_s), state


def _check_one_order(**orders: object) -> None:
    """Refuse to guess which of several orders is meant."""
    if sum(map(bool, orders.values())) > 1:
        from meshscope.probe.schema.errors import ConfigError

        raise ConfigError(
            message("refused.excluding_options"),
            where="attach",
            remedy=message("advice.give_one_of_them"),
        )


def _require_socket(pid: int) -> None:
    """Refuse to bring the probe into a process only to ask it how it is, or to cease."""
    from meshscope.probe.control.finding import socket_of_process
    from meshscope.probe.schema.errors import ConfigError

    if socket_of_process(pid, os.environ) is None:
        raise ConfigError(
            message("refused.not_recorded", pid=pid),
            where="--pid",
            remedy=message("advice.record_process"),
        )


class _Endpoints:
    """Whom to ask, and a line for each part of the job that cannot be asked from here."""

    def __init__(self, here: list[Endpoint], missing: list[str]) -> None:
        self.here = here
        self.missing = missing


def _endpoints(
    run: Path | None, pid: int | None, timeout_s: float, *, unsafe_gdb: bool
) -> _Endpoints:
    from meshscope.probe.schema.errors import ConfigError

    if (run is None) == (pid is None):
        raise ConfigError(
            message("refused.run_or_process"),
            where="attach",
            remedy=message("advice.give_run_or_pid"),
        )
    if pid is not None:
        return _Endpoints([_process(pid, timeout_s, unsafe_gdb=unsafe_gdb)], [])
    if unsafe_gdb:
        raise ConfigError(
            message("refused.needs_process"), where="--unsafe-gdb", remedy=message("advice.add_pid")
        )
    from meshscope.probe.control.finding import ranks_of_run

    assert run is not None
    found = ranks_of_run(run, os.environ)
    missing = [
        f"ranks {listed(ranks, most=16)} are on {host}: run this command there (srun, ssh, kubectl exec)"
        for host, ranks in sorted(found.elsewhere.items())
    ]
    missing += [f"rank {rank}: {reason}" for rank, reason in sorted(found.refused.items())]
    if found.unknown:
        missing.append(
            f"ranks {listed(found.unknown, most=16)} have no control socket: they ended, or have not begun"
        )
    if not found.here and not missing:
        missing.append(f"no rank of {run} has a control socket: has the job ended?")
    return _Endpoints(found.here, missing)


def _process(pid: int, timeout_s: float, *, unsafe_gdb: bool) -> Endpoint:
    from meshscope.probe.control import injection
    from meshscope.probe.control.finding import socket_of_process

    endpoint = socket_of_process(pid, os.environ)
    if endpoint is not None:
        return endpoint
    if not unsafe_gdb:
        return injection.attach_by_interpreter(pid, os.environ, timeout_s)
    say(
        f"gdb stops process {pid}, and every rank that waits for it, for up to "
        f"{injection.GDB_STALL_S} s or longer"
    )
    endpoint, stopped_s = injection.attach_by_debugger(pid, os.environ, timeout_s)
    say(f"process {pid} stood still for up to {stopped_s:.1f} s")
    return endpoint


def _report(outcome: Outcome, clause: str) -> None:
    """Write a line for each rank that answered, and say which did not."""
    for rank, found in sorted(outcome.done.items()):
        state = clause or found.get("state")
        step = found.get("step", -1)
        emit(
            f"rank {rank}  pid {found.get('pid')}  {state}"
            + (f"  step {step}" if step >= 0 else "")
        )
    for rank in sorted(outcome.pending):
        say(f"rank {rank}: its main thread has not run Python yet; it follows when it does")
    for rank, reason in sorted(outcome.failed.items()):
        say(f"rank {rank}: {reason}")

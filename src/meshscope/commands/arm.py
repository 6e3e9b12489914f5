"""The verb that records a few steps of all ranks in depth."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshscope.probe.schema.printable import listed

from .open_capture import next_command
from .options import DEFAULT_RUNS, MOST_TIMEOUT_S, FormatOption, RunsOption, named_run
from .output import Format, emit, print_json, say

if TYPE_CHECKING:
    from meshscope.analyze.read.deep_traces.steps import TraceCheck
    from meshscope.probe.deep.arming import Armed
    from meshscope.probe.deep.collecting import Collected


def arm(  # noqa: PLR0913 - the options of a verb
    run: Annotated[
        Path, typer.Option("--run", metavar="RUN", help="Run directory of the job, or its name.")
    ],
    steps: Annotated[int, typer.Option(min=1, max=1000, help="How many steps to record.")] = 3,
    first_step: Annotated[
        int | None,
        typer.Option(
            min=0, help="First step to record; by default one that all ranks can still reach."
        ),
    ] = None,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process", help="Profile in the training thread, and stall it meanwhile."
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=1,
            max=MOST_TIMEOUT_S,
            help="Seconds to wait for a step to end, and for the traces after the steps.",
        ),
    ] = 120.0,
    disarm: Annotated[
        bool, typer.Option("--disarm", help="Cancel the request, whoever made it.")
    ] = False,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Record the same steps of all ranks of this node in depth: operators and kernels."""
    from meshscope.analyze.read.deep_traces.steps import check_traces
    from meshscope.probe.deep.arming import arm as arm_ranks
    from meshscope.probe.deep.rank_traces import How

    run = named_run(run, runs) or run
    if disarm:
        _disarm(run, output)
        return
    how = How.IN_PROCESS if in_process else None
    with _signals_raise():
        armed = arm_ranks(run, steps, os.environ, first_step=first_step, how=how)
        collected = _wait(run, armed, timeout)
    paths = {rank: sealed.path for rank, sealed in collected.traces.items()}
    checks = check_traces(run, paths)
    if output is Format.JSON:
        print_json(_as_json(run, collected, checks))
    else:
        _write(run, collected, checks, output)
    wanted = tuple(range(armed.first_step, armed.last_step + 1))
    is_right = all(check.own_steps == wanted for check in checks.values())
    raise typer.Exit(0 if collected.is_whole and is_right else 1)


def _wait(run: Path, armed: Armed, timeout: float) -> Collected:
    """Wait for the traces; who leaves before calls off what was agreed."""
    from meshscope.probe.deep.arming import disarm
    from meshscope.probe.deep.collecting import collect

    try:
        pace = "" if armed.pace_s is None else f"; a step takes {armed.pace_s * 1e3:.3g} ms"
        say(
            f"{len(armed.pids)} ranks record steps {armed.first_step} to {armed.last_step}, "
            f"{_by(armed.how)}{pace}"
        )
        return collect(run, armed, timeout)
    except BaseException:
        disarm(armed)
        say("called off: no rank records these steps")
        raise


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Have a signal that would end this process at once end it as Ctrl-C does."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    ending = [signal.SIGTERM, signal.SIGHUP]
    taken = [number for number in ending if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _disarm(run: Path, output: Format) -> None:
    """Call off what the ranks of this node have promised, and say which had."""
    from meshscope.probe.deep.arming import disarm_run

    outcome = disarm_run(run, os.environ)
    ranks = [rank for rank, said in sorted(outcome.done.items()) if said["called_off"]]
    if output is Format.JSON:
        failed = {str(rank): reason for rank, reason in sorted(outcome.failed.items())}
        print_json({"called_off": ranks, "failed": failed})
    else:
        emit(f"called off on ranks {listed(ranks)}" if ranks else "nothing was on its way")
        for rank, reason in sorted(outcome.failed.items()):
            say(f"rank {rank} was not reached: {reason}")
    raise typer.Exit(1 if outcome.failed else 0)


def _by(how: str) -> str:
    return "by Kineto's own client" if how == "daemon" else "by the profiler in the training thread"


def _write(run: Path, collected: Collected, checks: dict[int, TraceCheck], output: Format) -> None:
    armed = collected.armed
    mark = "- " if output is Format.MARKDOWN else ""
    for rank, sealed in sorted(collected.traces.items()):
        check = checks[rank]
        stall_ns = collected.stalls_ns.get(rank)
        stall = "" if stall_ns is None else f"  stalled {stall_ns / 1e6:.1f} ms"
        emit(
            f"{mark}rank {rank}  steps {_steps(check)}  "
            f"{check.operators} operators  {check.device_events} device events  "
            f"{sealed.size_bytes / 1e6:.2f} MB{stall}"
        )
        if check.problem:
            say(f"rank {rank}: {check.problem}")
    for rank, reason in sorted(collected.failed.items()):
        say(f"rank {rank} has no trace: {reason}")
    for host, ranks in sorted(armed.found.elsewhere.items()):
        say(
            f"ranks {listed(ranks)} are on {host}: run this there with "
            f"--first-step {armed.first_step}, before that step (srun, ssh, kubectl exec)"
        )
    if collected.traces and output is Format.TEXT:
        emit(next_command("kernels", run))


def _steps(check: TraceCheck) -> str:
    """Return the steps as the run counts them, and as their rank does where that is different.

    A rank that was attached again does not know how many steps it has missed.
    """
    steps = listed(check.steps) or "unknown"
    is_other = check.own_steps and check.own_steps != check.steps
    return f"{steps} (by the rank's own count {listed(check.own_steps)})" if is_other else steps


def _as_json(run: Path, collected: Collected, checks: dict[int, TraceCheck]) -> dict[str, Any]:
    armed = collected.armed
    return {
        "ticket": armed.ticket,
        "first_step": armed.first_step,
        "last_step": armed.last_step,
        "how": armed.how.value,
        "traces": {
            str(rank): {
                "path": str(sealed.path.relative_to(run)),
                "size_bytes": sealed.size_bytes,
                "sha256": sealed.sha256,
                "steps": list(checks[rank].steps),
                "operators": checks[rank].operators,
                "device_events": checks[rank].device_events,
                "stall_ns": collected.stalls_ns.get(rank),
                "problem": checks[rank].problem or None,
            }
            for rank, sealed in sorted(collected.traces.items())
        },
        "failed": {str(rank): reason for rank, reason in sorted(collected.failed.items())},
        "elsewhere": dict(armed.found.elsewhere),
    }

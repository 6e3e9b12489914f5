"""The verb that tells what works here, and what the probe costs a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshscope.analyze.wording.quantities import percent
from meshscope.probe.schema.message import message

from .open_capture import next_command
from .options import DEFAULT_RUNS, FormatOption, RunsOption
from .output import Format, emit, print_json

if TYPE_CHECKING:
    from meshscope.probe.doctor.checks import Check
    from meshscope.probe.doctor.overhead import Overhead


def doctor(
    command: Annotated[
        list[str] | None, typer.Argument(help="The launch command, after --, for --overhead.")
    ] = None,
    overhead: Annotated[
        bool, typer.Option("--overhead", help="Measure a job with and without the probe.")
    ] = False,
    window_steps: Annotated[
        int, typer.Option(min=2, help="Steps of a window; its first step is left out.")
    ] = 10,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Check what works on this machine, with a remedy for what does not.

    With --overhead, measure what the probe costs: meshscope doctor --overhead -- torchrun … train.py.
    """
    from meshscope.probe.doctor.checks import all_checks
    from meshscope.probe.schema.errors import ConfigError

    if overhead:
        _overhead(command or [], runs, window_steps, output)
        return
    if command:
        raise ConfigError(
            message("refused.command_without_overhead"),
            where="doctor",
            remedy=message("advice.add_overhead"),
        )
    found = all_checks(runs)
    if output is Format.JSON:
        print_json({"checks": [_check_to_json(check) for check in found]})
        return
    if output is Format.MARKDOWN:
        emit("\n".join(_as_markdown(found)))
        return
    width = max(len(check.name) for check in found)
    for check in found:
        remedy = f". {check.remedy}" if check.remedy else ""
        emit(f"{check.state.value:8} {check.name:{width}}  {check.found}{remedy}")
    emit(next_command("run", "--", "torchrun", "train.py"))


def _as_markdown(found: Sequence[Check]) -> list[str]:
    """Return the checks as a table."""
    from meshscope.analyze.wording.text_table import markdown_table

    rows = [(check.state.value, check.name, check.found, check.remedy) for check in found]
    return markdown_table(("state", "check", "found", "remedy"), rows, left=4)


def _check_to_json(check: Check) -> dict[str, str]:
    return {
        "name": check.name,
        "state": check.state.value,
        "found": check.found,
        "remedy": check.remedy,
    }


def _overhead(command: list[str], runs: Path, window_steps: int, output: Format) -> None:
    from meshscope.probe.schema.errors import ConfigError

    if not command:
        raise ConfigError(
            message("refused.no_command_to_measure"),
            where="doctor",
            remedy=message("advice.command_to_measure"),
        )
    from meshscope.probe.doctor.overhead import measure_overhead

    found, code = measure_overhead(command, runs, window_steps)
    if found is None:
        raise typer.Exit(code or 1)
    if output is Format.JSON:
        print_json(found.to_json())
    elif output is Format.MARKDOWN:
        emit("\n".join(f"- {line.strip()}" for line in _overhead_lines(found)))
    else:
        emit("\n".join(_overhead_lines(found)))
        emit(next_command("diagnose", found.run))


def _overhead_lines(found: Overhead) -> list[str]:
    """Return the result in words."""
    from meshscope.probe.doctor.statistics import percent

    effect = found.effect
    interval = f"95 % interval {percent(effect.low_frac)} to {percent(effect.high_frac)}"
    least = percent(effect.detectable_frac).lstrip("+")
    if effect.is_clear:
        verdict = "the difference is clear"
    else:
        verdict = (
            f"not clear of the scatter of the job: a cost of {least} of the step or more "
            "would have been seen four times in five"
        )
    memory = "unknown" if found.rss_bytes is None else f"{found.rss_bytes / 2**20:.0f} MB"
    calls = ", ".join(f"{kind} {taken:,} ns" for kind, taken in sorted(found.per_call_ns.items()))
    return [
        f"step with the probe against none at all: {percent(effect.median_frac)} ({interval})",
        f"  {verdict}",
        f"  {effect.pairs} pairs of windows of {found.window_steps} steps in random order, "
        f"{found.ranks} ranks, median step {found.step_time_ns / 1e6:.4g} ms",
        f"  smallest effect that this comparison can find: {least}",
        f"in that, measured apart: {percent(found.left_frac)} of the step that stays in windows "
        f"without the probe ({_left(found)})",
        *_in_a_run(found),
        "not in that, since both kinds of windows have it, but on other cores: the probe's "
        f"threads of a rank, {_share(found.threads_frac)}; the node agent with its start, "
        f"{_share(found.agent_frac)}",
        f"  {found.communication_per_step:.0f} communication calls in a step of a rank",
        f"a call, by the hooks' own measure: {calls or 'no sample'}",
        f"memory of a recorder with a full ring, beside torch: {memory}",
        f"load average {found.load[0]:.1f} before and {found.load[1]:.1f} after, "
        f"{found.cpus} CPUs" + (": busy" if max(found.load) > found.cpus else ""),
        f"run: {found.run}",
    ]


def _in_a_run(found: Overhead) -> Iterator[str]:
    """Say what a run would record for its cost, and what it would pay then."""
    from meshscope.probe.doctor.statistics import percent
    from meshscope.probe.schema.sampling import WINDOW_STEPS

    if found.own_frac is None:
        return
    said = f"by the hooks' own measure {percent(found.own_frac)} of the step"
    if found.one_in == 1:
        yield f"{said}: within the budget of a run, which records every step"
    elif found.one_in is None or found.sampled_frac is None:
        yield f"{said}: far over the budget of a run, which would lower its level"
    else:
        yield (
            f"{said}: over the budget of a run, which would record {WINDOW_STEPS} of every "
            f"{WINDOW_STEPS * found.one_in} steps, and cost {percent(found.sampled_frac)} of the mean step"
        )


def _left(found: Overhead) -> str:
    """Return what stays of the probe in a step, by what it is."""
    return ", ".join(
        f"{name} " + ("unknown" if taken is None else f"{taken:,} ns")
        for name, taken in found.left_ns.items()
    )


def _share(frac: float | None) -> str:
    return "unknown" if frac is None else f"{percent(frac)} of a core"

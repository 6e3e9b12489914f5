"""The verb that accounts for the step time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from meshscope.analyze.wording.command_line import command_line

from .every_step import show_every_step
from .first_look import Room, executor_for, first_look
from .follow_up import follow_up
from .open_capture import Opened, open_trace
from .options import (
    DEFAULT_RUNS,
    ClusterOption,
    EveryStepOption,
    FormatOption,
    ManyWorkersOption,
    MemoryLimitOption,
    RunPath,
    RunsOption,
    StepsOption,
    TopologyOption,
)
from .output import Format, show_document

if TYPE_CHECKING:
    from meshscope.analyze.tables.results import Diagnosis
    from meshscope.analyze.tables.trace import Trace

    from .first_look import FirstLook


def diagnose(  # noqa: PLR0913 - the options of a verb
    path: RunPath,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    processes: ManyWorkersOption = None,
    cluster: ClusterOption = None,
    memory_limit: MemoryLimitOption = None,
    every_step: EveryStepOption = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Account for the step time of a run: waterfall, findings, stragglers, what was not seen.

    With --workers or --cluster, summaries first show which of many ranks is slow, since when and at what
    cost. The account follows; if memory is short, for the steps that matter. --memory-limit does the same
    for as many of these steps as fit. --every-step accounts for all steps, by windows in parallel.
    """
    from meshscope.analyze import diagnose as analyse
    from meshscope.analyze.formulas.planning.cap import parse_bytes
    from meshscope.analyze.output.text import diagnosis_document

    look, room = None, None
    if every_step or not (processes is None and cluster is None and memory_limit is None):
        limit = None if memory_limit is None else parse_bytes(memory_limit, "--memory-limit")
        executor = executor_for(processes, cluster)
        look = first_look(path, executor, Room(limit, steps))
        look.show(output, all_steps=every_step)
        if every_step:
            show_every_step(look, executor, Room(limit, steps), topology_file, output)
            return
        if look.steps is not None and (steps is None or limit is not None):
            steps = look.steps.steps.text
        room = look.most_rows
    opened = open_trace(path, topology_file, runs, steps, most_rows=room)
    result = analyse(opened.trace)
    show_document(
        output,
        partial(_to_json, result, look),
        partial(diagnosis_document, result),
        _following(opened, result),
    )


def _to_json(result: Diagnosis, look: FirstLook | None) -> dict[str, Any]:
    from meshscope.analyze.output.json import diagnosis_to_json

    return diagnosis_to_json(result) | ({} if look is None else {"summary": look.to_json()})


def _following(opened: Opened, result: Diagnosis) -> str:
    """Return the command for the pages of the run, then the one that takes up the first finding."""
    verb = follow_up(result) or _closer_look(opened.trace)
    following = opened.next_command(*verb) if verb else ""
    if not opened.is_run:
        return following
    return f"\nPages: {command_line('dashboard', opened.trace.path.resolve().parent)}{following}"


def _closer_look(trace: Trace) -> tuple[str, ...]:
    """Return the verb that tells most of a capture in which nothing is to be taken up; empty if none does."""
    if trace.row_count("kernel"):
        return ("kernels",)
    if trace.row_count("step") and len(trace.ranks) > 1:
        return ("stragglers",)
    # A trace of a host alone has its operators there.
    recorded = {"op": "kernels", "collective": "collectives", "message": "collectives"}
    return next(((verb,) for table, verb in recorded.items() if trace.row_count(table)), ())

"""The verb that accounts for the step time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .follow_up import follow_up
from .opening import Opened, command_line, open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document

if TYPE_CHECKING:
    from meshscope.analyze.tables.results import Diagnosis
    from meshscope.analyze.tables.trace import Trace


def diagnose(
    path: RunPath,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Account for the step time of a run: waterfall, findings, stragglers, what was not seen."""
    from meshscope.analyze import diagnose as analyse
    from meshscope.analyze.output.text import diagnosis_document

    opened = open_trace(path, topology_file, runs, steps)
    result = analyse(opened.trace)
    show_document(
        output,
        partial(_to_json, result),
        partial(diagnosis_document, result),
        _following(opened, result),
    )


def _to_json(result: Diagnosis) -> dict[str, Any]:
    from meshscope.analyze.output.json import diagnosis_to_json

    return diagnosis_to_json(result)


def _following(opened: Opened, result: Diagnosis) -> str:
    """Return the command for the pages of the run, then the one that takes up the first finding."""
    following = opened.next_command(*(follow_up(result) or _closer_look(opened.trace)))
    if not opened.is_run:
        return following
    return f"\nPages: {command_line('dashboard', opened.trace.path.resolve().parent)}{following}"


def _closer_look(trace: Trace) -> tuple[str]:
    """Return the verb that tells most of a capture in which nothing is to be taken up."""
    if trace.row_count("kernel"):
        return ("kernels",)
    return ("stragglers" if trace.row_count("step") else "collectives",)

"""The verb that accounts for the step time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .follow_up import follow_up
from .opening import Opened, command_line, next_command, open_trace
from .options import DEFAULT_RUNS, Format, FormatOption, RunPath, RunsOption, TopologyOption
from .output import show

if TYPE_CHECKING:
    from meshscope.analyze.results import Diagnosis


def diagnose(
    path: RunPath,
    topology_file: TopologyOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Account for the step time of a run: waterfall, findings, stragglers, what was not seen."""
    from meshscope.analyze import diagnose as analyse
    from meshscope.analyze.exchange import diagnosis_to_json
    from meshscope.analyze.report import to_text

    opened = open_trace(path, topology_file, runs)
    result = analyse(opened.trace)
    show(
        output,
        lambda: diagnosis_to_json(result),
        partial(to_text, result),
        _following(opened, result),
    )


def _following(opened: Opened, result: Diagnosis) -> str:
    """Return the command that takes up the first finding, after that for the pages of the run."""
    words = follow_up(result)
    pages = ("dashboard", opened.trace.path.resolve().parent)
    if not opened.is_run:
        return opened.next_command(*(words or ("collectives",)))
    if not words:
        return next_command(*pages)
    return f"\nPages: {command_line(*pages)}{opened.next_command(*words)}"

"""The verb that accounts for the step time."""

from __future__ import annotations

from functools import partial

from .opening import next_command, open_trace
from .options import DEFAULT_RUNS, Format, FormatOption, RunPath, RunsOption, TopologyOption
from .output import show


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

    trace, _ = open_trace(path, topology_file, runs)
    result = analyse(trace)
    show(
        output,
        lambda: diagnosis_to_json(result),
        partial(to_text, result),
        next_command("dashboard", trace.path.resolve().parent),
    )

"""The verb that accounts for the step time."""

from __future__ import annotations

from .opening import next_command, open_trace
from .options import DEFAULT_RUNS, Format, FormatOption, RunPath, RunsOption, TopologyOption
from .output import emit, print_json


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
    if output is Format.JSON:
        print_json(diagnosis_to_json(result))
        return
    emit(to_text(result, markdown=output is Format.MARKDOWN))
    if output is Format.TEXT:
        emit(next_command("dashboard", trace.path.resolve().parent))

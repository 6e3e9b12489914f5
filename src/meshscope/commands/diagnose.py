"""The verb that accounts for the step time."""

from __future__ import annotations

from .options import Format, FormatOption, RunPath
from .output import emit, print_json


def diagnose(
    path: RunPath,
    output: FormatOption = Format.TEXT,
) -> None:
    """Account for the step time of a run: waterfall, findings, stragglers, what was not seen."""
    from meshscope.analyze import diagnose as analyse
    from meshscope.analyze import load_trace
    from meshscope.analyze.exchange import diagnosis_to_json
    from meshscope.analyze.report import to_text

    result = analyse(load_trace(path))
    if output is Format.JSON:
        print_json(diagnosis_to_json(result))
        return
    emit(to_text(result, markdown=output is Format.MARKDOWN))
    if output is Format.TEXT:
        emit(f"\nNext: meshscope dashboard {path.resolve().parent}")

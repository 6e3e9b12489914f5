"""The verb that splits device time."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import Format, FormatOption, RunPath
from .output import emit, print_json


def breakdown(
    path: RunPath,
    step: Annotated[
        int | None, typer.Option(help="One step; all device events if not given.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Split each rank's device time: computation, exposed communication and copies, idle."""
    from meshscope.analyze import load_trace
    from meshscope.analyze.exchange import breakdown_to_json
    from meshscope.analyze.report import breakdown_to_text

    result = breakdown_to_json(load_trace(path), step)
    if output is Format.JSON:
        print_json(result)
        return
    emit(breakdown_to_text(result, markdown=output is Format.MARKDOWN))
    if output is Format.TEXT:
        emit(f"\nNext: meshscope diagnose {path}")

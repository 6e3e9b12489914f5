"""The verb that matches collectives across ranks."""

from __future__ import annotations

from .options import Format, FormatOption, RunPath
from .output import emit, print_json


def collectives(
    path: RunPath,
    output: FormatOption = Format.TEXT,
) -> None:
    """Match collectives across ranks: wire time, waiting, who arrived last, bus bandwidth."""
    from meshscope.analyze import load_trace
    from meshscope.analyze.exchange import collectives_to_json
    from meshscope.analyze.report import collectives_to_text

    result = collectives_to_json(load_trace(path))
    if output is Format.JSON:
        print_json(result)
        return
    emit(collectives_to_text(result, markdown=output is Format.MARKDOWN))
    if output is Format.TEXT:
        emit(f"\nNext: meshscope diagnose {path}")

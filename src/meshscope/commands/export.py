"""The verb that writes a capture for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import RunPath
from .output import emit


class Target(StrEnum):
    """A form that other tools read."""

    PERFETTO = "perfetto"
    CSV = "csv"


def export(
    path: RunPath,
    out: Annotated[Path, typer.Option(help="The file (perfetto; .gz compresses) or folder (csv).")],
    to: Annotated[Target, typer.Option(help="What to write.")] = Target.PERFETTO,
) -> None:
    """Write a capture for other tools: a timeline for the Perfetto UI, or tables as CSV."""
    from meshscope.analyze import load_trace
    from meshscope.analyze.export import export_csv, export_perfetto

    trace = load_trace(path)
    if to is Target.CSV:
        files = export_csv(trace, out)
        emit("\n".join(str(file) for file in files))
        return
    count = export_perfetto(trace, out)
    emit(f"{out}: {count:,} events\n\nNext: open it in the Perfetto UI")

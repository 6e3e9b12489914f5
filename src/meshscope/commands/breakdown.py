"""The verb that splits device time."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from .open_capture import open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document


def breakdown(
    path: RunPath,
    step: Annotated[
        int | None, typer.Option(help="One step; all device events if not given.")
    ] = None,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Split each rank's device time: computation, exposed communication and copies, idle."""
    from meshscope.analyze.output.json import breakdown_to_json
    from meshscope.analyze.output.text import breakdown_document

    opened = open_trace(path, topology_file, runs, steps)
    result = breakdown_to_json(opened.trace, step)
    show_document(
        output,
        lambda: result,
        partial(breakdown_document, result),
        opened.next_command("diagnose"),
        opened.ends(),
    )

"""The verb that lists the kernels that devices spent their time on."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from .open_capture import open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document


def kernels(
    path: RunPath,
    top: Annotated[int, typer.Option(min=1, help="How many kernels to list, longest first.")] = 20,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """List the costliest kernels: by phase, axis and stage, with the cost of launches."""
    from meshscope.analyze.output.json import kernels_to_json
    from meshscope.analyze.output.text import kernels_document

    opened = open_trace(path, topology_file, runs, steps)
    result = kernels_to_json(opened.trace, top)
    show_document(
        output,
        lambda: result,
        partial(kernels_document, result),
        opened.next_command("breakdown" if result["kernels"] else "diagnose"),
        opened.ends(),
    )

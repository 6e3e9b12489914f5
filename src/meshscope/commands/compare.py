"""The verb that compares two runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .open_capture import open_trace
from .options import DEFAULT_RUNS, FormatOption, RunsOption, TopologyOption, named_path
from .output import Format, show_document


def compare(  # noqa: PLR0913 - the options of a verb
    before: Annotated[
        Path,
        typer.Argument(
            metavar="BEFORE", parser=named_path, help="A run, or another tool's traces."
        ),
    ],
    after: Annotated[
        Path, typer.Argument(metavar="AFTER", parser=named_path, help="The run to compare with it.")
    ],
    top: Annotated[
        int, typer.Option(min=1, help="How many operators and kernels to list, most changed first.")
    ] = 20,
    steps_before: Annotated[
        str | None,
        typer.Option(metavar="FIRST:LAST", help="Of BEFORE these steps only, both included."),
    ] = None,
    steps_after: Annotated[
        str | None,
        typer.Option(metavar="FIRST:LAST", help="Of AFTER these steps only, both included."),
    ] = None,
    topology_file: TopologyOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Compare two runs: by how much the step became longer, in which class, operator and kernel."""
    from meshscope.analyze.findings.comparison import compare as compared
    from meshscope.analyze.findings.comparison import side_of_account
    from meshscope.analyze.output.json import comparison_to_json
    from meshscope.analyze.output.text import comparison_document

    first = side_of_account(open_trace(before, topology_file, runs, steps_before).measured())
    opened = open_trace(after, topology_file, runs, steps_after)
    result = comparison_to_json(compared(first, side_of_account(opened.measured())), top)
    show_document(
        output,
        lambda: result,
        partial(comparison_document, result),
        opened.next_command("diagnose"),
        opened.ends(),
    )

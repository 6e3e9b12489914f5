"""The verb that turns a file for each rank into segments of many ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .first_look import executor_for
from .open_capture import next_command
from .options import ClusterOption, FormatOption, named_path
from .output import Format, show_document
from .progress import ranks_progress


def compact(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=named_path, help="A run directory.")],
    keep_steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Remove the records of other steps, for ever; all are kept if not given.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Processes of this machine; one a CPU if not given."),
    ] = None,
    cluster: ClusterOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Put the tables of a run into segments of 256 ranks: fewer files, the same results.

    A run that the probe recorded stays as it is. A call that is killed leaves the run as it was.
    """
    from meshscope.analyze.output.json.summaries import compacted_to_json
    from meshscope.analyze.output.text.summaries import compacted_document
    from meshscope.analyze.scale.compact import compact as put_into_segments
    from meshscope.analyze.scale.segments import ranks_of_run
    from meshscope.analyze.tables.part import StepRange

    steps = None if keep_steps is None else StepRange.parse(keep_steps, "--keep-steps")
    executor = executor_for(processes, cluster)
    with ranks_progress(len(ranks_of_run(run)), done="compacted") as on_done:
        made = put_into_segments(run, executor, on_done, steps)
    show_document(
        output,
        lambda: compacted_to_json(made),
        partial(compacted_document, made),
        next_command("summarize", run),
    )

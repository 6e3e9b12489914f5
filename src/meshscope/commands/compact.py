"""The verb that turns a file for each rank into segments of many ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .first_look import executor_for
from .open_capture import next_command
from .options import ClusterOption, FormatOption, named_path
from .output import Format, show_document
from .progress import ranks_progress

if TYPE_CHECKING:
    from meshscope.analyze.scale.executors import Executor
    from meshscope.analyze.tables.part import StepRange


def compact(  # noqa: PLR0913 - the options of a verb
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=named_path, help="A run directory.")],
    keep_steps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Remove the records of other steps, for ever; all are kept if not given. May be given again.",
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS", min=1, help="Keep so many of the last steps, and remove others."
        ),
    ] = None,
    keep_findings: Annotated[
        bool,
        typer.Option(
            "--keep-findings",
            help="Keep the steps around slow ranks and around the longest steps, and remove others.",
        ),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Processes of this machine; one a CPU if not given."),
    ] = None,
    cluster: ClusterOption = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Put the tables of a run into segments of 256 ranks: fewer files, the same results.

    A run that the probe recorded stays as it is. A call that is killed leaves the run as it was. Where steps are
    removed, the summaries of all steps stay.
    """
    from meshscope.analyze.output.json.summaries import compacted_to_json
    from meshscope.analyze.output.text.summaries import compacted_document
    from meshscope.analyze.scale.compact import compact as put_into_segments
    from meshscope.analyze.scale.segments import ranks_of_run
    from meshscope.analyze.tables.part import StepRange

    executor = executor_for(processes, cluster)
    steps = [StepRange.parse(one, "--keep-steps") for one in keep_steps or ()]
    if keep_last is not None or keep_findings:
        steps += _found(run, executor, keep_last, around=keep_findings)
    with ranks_progress(len(ranks_of_run(run)), done="compacted") as on_done:
        made = put_into_segments(run, executor, on_done, steps)
    show_document(
        output,
        lambda: compacted_to_json(made),
        partial(compacted_document, made),
        next_command("summarize", run),
    )


def _found(run: Path, executor: Executor, last: int | None, *, around: bool) -> list[StepRange]:
    """Return the steps to keep that the summaries tell."""
    from meshscope.analyze.every_step.steps_to_keep import around_findings, newest
    from meshscope.analyze.scale.segments import ranks_of_run
    from meshscope.analyze.scale.store import write_summaries

    with ranks_progress(len(ranks_of_run(run))) as on_done:
        made = write_summaries(run, executor, on_done)
    found = [] if last is None else [*newest(made, last)]
    return [*found, *around_findings(made)] if around else found

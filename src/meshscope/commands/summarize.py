"""The verb for runs of many ranks: summaries in parallel, and the first answer from them."""

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


def summarize(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=named_path, help="A run directory.")],
    processes: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Processes of this machine; one a CPU if not given."),
    ] = None,
    cluster: ClusterOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where summaries go; RUN/summaries if not given."),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory of each process, such as 600MB: it reads fewer ranks at a time, or some steps of one.",
        ),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Summarize a run of many ranks in parallel: which rank is slow, since when, at what price."""
    from meshscope.analyze.formulas.planning.cap import parse_bytes
    from meshscope.analyze.output.json.summaries import summaries_to_json
    from meshscope.analyze.output.text.summaries import summaries_document
    from meshscope.analyze.scale.first_answer import outlook_of
    from meshscope.analyze.scale.segments import ranks_of_run
    from meshscope.analyze.scale.store import write_summaries

    executor = executor_for(processes, cluster)
    limit = None if memory_limit is None else parse_bytes(memory_limit, "--memory-limit")
    with ranks_progress(len(ranks_of_run(run))) as on_done:
        made = write_summaries(run, executor, on_done, out, limit_bytes=limit)
    answer = outlook_of(made, limit).answer
    show_document(
        output,
        lambda: summaries_to_json(made, answer),
        partial(summaries_document, made, answer),
        next_command("diagnose", run),
    )

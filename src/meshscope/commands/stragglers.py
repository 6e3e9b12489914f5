"""The verb that tells which ranks make the others wait."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from meshscope.probe.schema.message import message

from .open_capture import next_command, open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document


def stragglers(
    path: RunPath,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    compat: Annotated[
        bool,
        typer.Option(
            "--compat", help="The published metrics (S, S_t, S_w, M_W, M_S) of an NDTimeline job."
        ),
    ] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """List the ranks that make others wait: cost and gain of a repair, by rank, stage and step."""
    if compat:
        if topology_file is not None:
            raise typer.BadParameter(str(message("usage.mesh_of_compat")))
        _published(path, output)
        return
    from meshscope.analyze import diagnose
    from meshscope.analyze.output.json.stragglers import stragglers_to_json
    from meshscope.analyze.output.straggler_tables import find_stragglers
    from meshscope.analyze.output.text.stragglers import stragglers_document

    opened = open_trace(path, topology_file, runs, steps)
    result = find_stragglers(diagnose(opened.trace))
    show_document(
        output,
        lambda: stragglers_to_json(result),
        partial(stragglers_document, result),
        opened.next_command("diagnose"),
    )


def _published(path: Path, output: Format) -> None:
    from meshscope.analyze.explain.straggler_metrics import find_job, published_metrics
    from meshscope.analyze.output.json.stragglers import published_to_json
    from meshscope.analyze.output.text.stragglers import published_document

    metrics = published_metrics(find_job(path))
    show_document(
        output,
        lambda: published_to_json(metrics),
        partial(published_document, metrics),
        next_command("stragglers", path),
    )

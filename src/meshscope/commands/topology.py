"""The verb that tells the mesh and the axis of every process group."""

from __future__ import annotations

from functools import partial

from .open_capture import open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, TopologyOption
from .output import Format, show_document


def topology(
    path: RunPath,
    topology_file: TopologyOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Draw the mesh on its hosts; list badly placed axes, their cost and a better order."""
    from meshscope.analyze.output.json import topology_to_json
    from meshscope.analyze.output.text import topology_document

    opened = open_trace(path, topology_file, runs)
    result = topology_to_json(opened.trace, opened.stated)
    show_document(
        output,
        lambda: result,
        partial(topology_document, result),
        opened.next_command("collectives"),
    )

"""The verb that tells the mesh and the axis of every process group."""

from __future__ import annotations

from functools import partial

from .opening import open_trace
from .options import DEFAULT_RUNS, Format, FormatOption, RunPath, RunsOption, TopologyOption
from .output import show


def topology(
    path: RunPath,
    topology_file: TopologyOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Tell the layout of the mesh and the axis of every group, with the evidence."""
    from meshscope.analyze.exchange import topology_to_json
    from meshscope.analyze.report import topology_to_text

    opened = open_trace(path, topology_file, runs)
    result = topology_to_json(opened.trace, opened.stated)
    show(
        output,
        lambda: result,
        partial(topology_to_text, result),
        opened.next_command("collectives"),
    )

"""The verb that matches collectives across ranks."""

from __future__ import annotations

from functools import partial

from .open_capture import open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document


def collectives(
    path: RunPath,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Match collectives across ranks: wire time, waiting, who arrived last, bus bandwidth."""
    from meshscope.analyze.output.json import collectives_to_json
    from meshscope.analyze.output.text import collectives_document

    opened = open_trace(path, topology_file, runs, steps)
    result = collectives_to_json(opened.trace)
    show_document(
        output,
        lambda: result,
        partial(collectives_document, result),
        opened.next_command("diagnose"),
        opened.ends(),
    )

"""The verb that shows what the length of a step consists of."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from .opening import next_command, open_trace
from .options import DEFAULT_RUNS, Format, FormatOption, RunPath, RunsOption, TopologyOption
from .output import show


def critical_path(
    path: RunPath,
    step: Annotated[
        int | None, typer.Option(help="Which step; the one of median length if not given.")
    ] = None,
    topology_file: TopologyOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Follow one step back through the ranks: the work and transfers that decide its length."""
    from meshscope.analyze.critical_path import critical_path as find_path
    from meshscope.analyze.exchange import critical_path_to_json
    from meshscope.analyze.measure import measure
    from meshscope.analyze.report import critical_path_to_text

    trace, _ = open_trace(path, topology_file, runs)
    account = measure(trace)
    result = critical_path_to_json(find_path(account, step), account.limits)
    show(
        output,
        lambda: result,
        partial(critical_path_to_text, result),
        next_command("whatif", path, " --fix rank=N"),
    )

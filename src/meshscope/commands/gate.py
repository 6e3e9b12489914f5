"""The verb that checks a run against budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .opening import open_trace
from .options import (
    DEFAULT_RUNS,
    Format,
    FormatOption,
    RunPath,
    RunsOption,
    StepsOption,
    TopologyOption,
)
from .output import emit, emit_report, print_json


def gate(
    path: RunPath,
    budget: Annotated[Path, typer.Option(help="TOML file with a [budget] table.")],
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Check a run against absolute budgets: exit 0 if all hold, 1 if one fails, 2 if one is unknown."""
    from meshscope.analyze import diagnose as analyse
    from meshscope.analyze.gate import check, exit_code, load_budgets, to_markdown, to_rows, to_text

    budgets = load_budgets(budget)
    opened = open_trace(path, topology_file, runs, steps)
    result = analyse(opened.trace)
    verdicts = check(result, budgets)
    if output is Format.JSON:
        run = str(opened.trace.run.get("run_id") or opened.trace.path.name)
        limits = list(result.limits)
        print_json({"version": 1, "run": run, "checks": to_rows(verdicts), "limits": limits})
    elif output is Format.MARKDOWN:
        emit(to_markdown(verdicts, result.limits))
    else:
        emit_report(to_text(verdicts, result.limits))
        emit(opened.next_command("diagnose"))
    raise typer.Exit(exit_code(verdicts))

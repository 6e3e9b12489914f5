"""The verb that shows what the length of a step consists of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .opening import open_trace
from .options import DEFAULT_RUNS, Format, FormatOption, RunPath, RunsOption, TopologyOption
from .output import show

if TYPE_CHECKING:
    from meshscope.analyze.account import Account


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

    opened = open_trace(path, topology_file, runs)
    account = measure(opened.trace)
    result = critical_path_to_json(find_path(account, step), account.limits)
    show(
        output,
        lambda: result,
        partial(critical_path_to_text, result),
        opened.next_command("whatif", "--fix", _fix(account, result["by_rank"])),
    )


def _fix(account: Account, by_rank: list[dict[str, Any]]) -> str:
    """Return what to repair first: the rank with the largest part of the path.

    A rank without peers cannot be compared with any; then it is its stage.
    """
    first = by_rank[0]
    is_alone = not account.peers_of(first["rank"])
    return (
        f"stage={first['stage']}" if is_alone and first["stage"] >= 0 else f"rank={first['rank']}"
    )

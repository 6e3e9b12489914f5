"""The verb that shows what the length of a step consists of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .opening import Opened, open_trace
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
        _following(opened, account, result["by_rank"]),
    )


def _following(opened: Opened, account: Account, by_rank: list[dict[str, Any]]) -> str:
    """Return the command that repairs the rank with the largest part of the path.

    A rank without peers cannot be compared with any; then it is its stage.
    """
    rank, stage = by_rank[0]["rank"], by_rank[0]["stage"]
    if account.peers_of(rank):
        return opened.next_command("whatif", "--fix", f"rank={rank}")
    if stage >= 0:
        return opened.next_command("whatif", "--fix", f"stage={stage}")
    return opened.next_command("diagnose")

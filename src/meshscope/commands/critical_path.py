"""The verb that shows what the length of a step consists of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from .follow_up import follow_up
from .open_capture import Opened, open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document

if TYPE_CHECKING:
    from meshscope.analyze.explain.run_account import Account


def critical_path(
    path: RunPath,
    step: Annotated[
        int | None,
        typer.Option(
            help="Which step; if not given, one of median length that the first finding names."
        ),
    ] = None,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Follow one step back through the ranks: the work and transfers that set its length."""
    from meshscope.analyze.findings.critical_path import critical_path as find_path
    from meshscope.analyze.output.json import critical_path_to_json
    from meshscope.analyze.output.text import critical_path_document

    opened = open_trace(path, topology_file, runs, steps)
    account = opened.measured()
    result = critical_path_to_json(find_path(account, step), account.limits)
    show_document(
        output,
        lambda: result,
        partial(critical_path_document, result),
        _following(opened, account),
        opened.ends(),
    )


def _following(opened: Opened, account: Account) -> str:
    """Return the command that the diagnosis goes on with: a path is no finding of its own.

    The rank with the largest part of a path may be as healthy as its peers.
    """
    from meshscope.analyze.findings.diagnosis import diagnosis_of

    return opened.next_command(*(follow_up(diagnosis_of(account)) or ("diagnose",)))

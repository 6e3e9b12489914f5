"""The verb that predicts what a change would return."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from .open_capture import open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document


def whatif(  # noqa: PLR0913 - the options of a verb
    path: RunPath,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            help="Repair a place (rank=5, stage=3, host=…, group=…, link=0->4, axis=dp) or a cause "
            "(stragglers, gc_pause, data_stall …). Can be given several times."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change the job: microbatches=64, schedule=zb-h1, chunks=2, layers=9,8,8,7 or "
            "layers=NOW->THEN (quoted), link.dp=2x, dtype.dp=bf16, bucket.dp=25MB, hierarchy.dp=on, "
            "compute=1.1x. Each can be given once.",
        ),
    ] = None,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Predict the step time after a repair or a changed setting, with its error."""
    from meshscope.analyze.explain.whatif import parse_changes, predict
    from meshscope.analyze.output.json import prediction_to_json
    from meshscope.analyze.output.text import prediction_document

    changes = parse_changes(fix or [], set_ or [])
    opened = open_trace(path, topology_file, runs, steps)
    account = opened.measured()
    result = prediction_to_json(changes, predict(account, changes), account.limits)
    show_document(
        output,
        lambda: result,
        partial(prediction_document, result),
        opened.next_command("diagnose"),
        opened.ends(),
    )

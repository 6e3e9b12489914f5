"""The verb that proposes a layer split."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from .open_capture import open_trace
from .options import DEFAULT_RUNS, FormatOption, RunPath, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document


def balance(  # noqa: PLR0913 - the options of a verb
    path: RunPath,
    layers: Annotated[
        str | None,
        typer.Option(metavar="COUNTS", help="Layers of each stage today, such as 4,4,4,4."),
    ] = None,
    try_: Annotated[
        str | None,
        typer.Option("--try", metavar="COUNTS", help="Price this split only, such as 5,5,4,2."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory of a device, such as 80e9 or 80GiB.")
    ] = None,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Propose the layers of each pipeline stage that make the step shortest, with the gain."""
    from meshscope.analyze.explain.balance import balance as find
    from meshscope.analyze.findings.measure import measure
    from meshscope.analyze.formulas.planning.cap import parse_bytes
    from meshscope.analyze.formulas.planning.stage_split import parse_counts
    from meshscope.analyze.output.json.balance import balance_to_json
    from meshscope.analyze.output.text.balance import balance_document

    now = None if layers is None else parse_counts(layers, "--layers")
    tried = None if try_ is None else parse_counts(try_, "--try")
    cap_bytes = None if memory is None else parse_bytes(memory)
    opened = open_trace(path, topology_file, runs, steps)
    result = balance_to_json(find(measure(opened.trace), now, tried, cap_bytes))
    following = opened.next_command("diagnose")
    if result["proposals"]:
        split = ",".join(map(str, result["proposals"][0]["layers"]))
        today = ",".join(map(str, result["current"]["layers"]))
        following = opened.next_command("whatif", "--set", f"layers={today}->{split}")
    show_document(output, lambda: result, partial(balance_document, result), following)

"""The verbs that hold a run against absolute budgets, or against a baseline."""

from __future__ import annotations

from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshscope.probe.schema.message import message

from .gate_inputs import read_runs
from .gate_outputs import (
    AnnotationsOption,
    GitlabOption,
    JunitOption,
    OpenmetricsOption,
    Outputs,
    SummaryOption,
    check_place,
)
from .open_capture import next_command, open_trace
from .options import DEFAULT_RUNS, FormatOption, RunsOption, StepsOption, TopologyOption, named_path
from .output import (
    Format,
    above_markdown,
    emit,
    emit_document,
    print_json,
    show_document,
    with_ends,
)

if TYPE_CHECKING:
    from meshscope.analyze.gate.facts import Baseline

RunPaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        parser=named_path,
        help="Run directories, other tools' traces, or CSV or JSON of run,step,step_time_ns.",
    ),
]

MarginOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Accepted loss: 0.01 is 1 %. By default max(0.5 %, 3 x the baseline's CV).",
    ),
]


AllowOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A part of the setup that may differ, as device_name."),
]


def check_margin(margin: float | None) -> None:
    """Refuse a margin that is no share.

    Raises:
        ConfigError: It is negative, 1 or more, or not finite.
    """
    from meshscope.probe.schema.errors import ConfigError

    if margin is not None and not (isfinite(margin) and 0 <= margin < 1):
        raise ConfigError(
            message("refused.margin", margin=margin),
            where="--margin",
            remedy=message("advice.margin"),
        )


def gate(  # noqa: PLR0913 - the options of a verb
    paths: RunPaths,
    budget: Annotated[
        Path | None,
        typer.Option(help="TOML file with a [budget] table: absolute bounds of one run."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="File of `meshscope gate baseline`: compare all PATHs with it."),
    ] = None,
    margin: MarginOption = None,
    allow: AllowOption = None,
    junit: JunitOption = None,
    step_summary: SummaryOption = None,
    annotations: AnnotationsOption = False,
    gitlab: GitlabOption = None,
    openmetrics: OpenmetricsOption = None,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Check runs against a baseline or budgets: exit 0 pass or improved, 1 fail, 2 undecided."""
    from meshscope.probe.schema.errors import ConfigError

    if (budget is None) == (baseline is None):
        raise ConfigError(
            message("refused.budget_or_baseline"),
            where="gate",
            remedy=message("advice.make_baseline"),
        )
    outputs = Outputs(
        junit=junit,
        step_summary=step_summary,
        annotations=annotations,
        gitlab=gitlab,
        openmetrics=openmetrics,
    )
    outputs.check()
    if budget is not None:
        if len(paths) > 1:
            raise ConfigError(
                message("refused.budget_of_one_run"),
                where="gate",
                remedy=message("advice.once_for_each"),
            )
        _against_budget(paths[0], budget, outputs, topology_file, steps, runs, output)
        return
    check_margin(margin)
    assert baseline is not None
    _against_baseline(
        paths, baseline, margin, allow or [], outputs, topology_file, steps, runs, output
    )


def _against_baseline(  # noqa: PLR0913 - the options of a verb
    paths: list[Path],
    file: Path,
    margin: float | None,
    allow: list[str],
    outputs: Outputs,
    topology_file: Path | None,
    steps: str | None,
    runs: Path,
    output: Format,
) -> None:
    from meshscope.analyze.gate.baseline_file import load_baseline
    from meshscope.analyze.gate.compare import compare
    from meshscope.analyze.gate.json_forms import EXIT_CODES, to_json
    from meshscope.analyze.output.render import to_markdown
    from meshscope.analyze.output.text.gate import gate_document

    base = load_baseline(file)
    allowed = allowed_names(base, allow)
    loaded = read_runs(paths, topology_file, runs, steps)
    result = compare(base, loaded, margin=margin, allowed=allowed)
    found = to_json(result)
    outputs.write(found, file, lambda: to_markdown(gate_document(found)))
    following = next_command("gate", *paths, "--baseline", file, "--format", "markdown")
    if result.verdict == "improved":
        following = next_command("gate", "baseline", *paths, "-o", file)
    elif EXIT_CODES[result.verdict]:
        is_trace = bool(loaded[0].counts)
        following = next_command(*(("diagnose", paths[0]) if is_trace else ("gate", "--help")))
    show_document(output, lambda: found, partial(gate_document, found), following)
    raise typer.Exit(EXIT_CODES[result.verdict])


def allowed_names(base: Baseline, names: list[str]) -> frozenset[str]:
    """Return the parts of the setup that may differ.

    Raises:
        ConfigError: The baseline has no such part.
    """
    from difflib import get_close_matches

    from meshscope.probe.schema.errors import ConfigError

    for name in names:
        if name not in base.setup:
            near = get_close_matches(name, base.setup, 1, 0.5)
            known = (
                message("advice.meant", name=near[0])
                if near
                else message("advice.setup_has", known=list(base.setup) or ["none"])
            )
            raise ConfigError(
                message("refused.setup_lacks", name=name), where="--allow", remedy=known
            )
    return frozenset(names)


def gate_baseline(
    paths: RunPaths,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="File to write: JSON of at most 50 kB."),
    ],
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Keep runs of one job as the baseline of a gate: five runs show how much runs differ."""
    from meshscope.analyze.gate.baseline_file import to_json
    from meshscope.analyze.gate.json_forms import baseline_to_json
    from meshscope.analyze.gate.loaded import baseline_of
    from meshscope.analyze.gate.setup import require_one_job
    from meshscope.analyze.output.text.gate import baseline_document

    check_place(out, "--out")
    loaded = read_runs(paths, topology_file, runs, steps)
    require_one_job(loaded)
    made = baseline_of(loaded)
    out.write_text(to_json(made), encoding="utf-8")
    found = baseline_to_json(made, out)
    following = next_command("gate", "RUN", "--baseline", out)
    show_document(output, lambda: found, partial(baseline_document, found), following)


def _against_budget(  # noqa: PLR0913 - the options of a verb
    path: Path,
    budget: Path,
    outputs: Outputs,
    topology_file: Path | None,
    steps: str | None,
    runs: Path,
    output: Format,
) -> None:
    from meshscope.analyze import diagnose as analyse
    from meshscope.analyze.gate.budgets import (
        budgets_document,
        check,
        exit_code,
        load_budgets,
        to_gate,
        to_markdown,
        to_rows,
    )
    from meshscope.analyze.wording.limits import limits_to_json

    budgets = load_budgets(budget)
    opened = open_trace(path, topology_file, runs, steps)
    result = analyse(opened.trace)
    verdicts = check(result, budgets)
    ends = tuple(finding for finding in result.findings if finding.is_end)
    outputs.write(to_gate(verdicts), budget, lambda: to_markdown(verdicts, result.limits))
    if output is Format.JSON:
        run = str(opened.trace.run.get("run_id") or opened.trace.path.name)
        shown = limits_to_json(result.limits)
        found = {"version": 1, "run": run, "checks": to_rows(verdicts), **shown}
        print_json(with_ends(found, ends))
    elif output is Format.MARKDOWN:
        emit(above_markdown(ends) + to_markdown(verdicts, result.limits))
    else:
        emit_document(budgets_document(verdicts, result.limits), ends)
        emit(opened.next_command("diagnose"))
    raise typer.Exit(exit_code(verdicts))

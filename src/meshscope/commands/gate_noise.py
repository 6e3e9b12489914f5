"""The verbs about noise: how often a gate would alarm, what it could see, where a history changed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshscope.probe.schema.message import message

from .gate import MarginOption, RunPaths, check_margin
from .gate_inputs import read_runs
from .gate_outputs import check_place
from .open_capture import next_command
from .options import DEFAULT_RUNS, FormatOption, RunsOption, StepsOption, TopologyOption
from .output import Format, show_document

if TYPE_CHECKING:
    from meshscope.analyze.tables.arrays import FloatArray

_LEAST_HISTORY = 4
"""Two runs on each side of a change."""

BaselinePaths = Annotated[
    list[Path], typer.Argument(metavar="PATH", help="A baseline file, or the runs for one.")
]


def _times(paths: list[Path], margin: float | None, least: int, runs: Path) -> FloatArray:
    from meshscope.analyze.gate.baseline_file import is_baseline, load_baseline
    from meshscope.analyze.gate.loaded import baseline_of
    from meshscope.analyze.wording.words import counted
    from meshscope.probe.schema.errors import ConfigError

    check_margin(margin)
    if len(paths) == 1 and is_baseline(paths[0]):
        base = load_baseline(paths[0])
    else:
        base = baseline_of(read_runs(paths, None, runs, None))
    if len(base.runs) < least:
        raise ConfigError(
            message("refused.too_few_runs", runs=counted(len(base.runs), "run"), least=least),
            where=str(paths[0]),
            remedy=message("advice.repeat_job"),
        )
    if not base.has_times:
        raise ConfigError(
            message("refused.counts_alone"), where=str(paths[0]), remedy=base.limits[0]
        )
    return base.logs()


def gate_selftest(
    paths: BaselinePaths,
    margin: MarginOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Estimate how often a gate would alarm on this baseline without a cause: its own runs, relabelled."""
    from meshscope.analyze.gate.json_forms import selftest_to_json
    from meshscope.analyze.gate.selftest import LEAST_RUNS
    from meshscope.analyze.output.text.gate import selftest_document

    found = selftest_to_json(_times(paths, margin, LEAST_RUNS + 1, runs), margin)
    following = next_command("gate", "calibrate", *paths)
    show_document(output, lambda: found, partial(selftest_document, found), following)


def gate_calibrate(
    paths: BaselinePaths,
    margin: MarginOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Estimate the loss that a gate finds with this baseline, by the number of candidate runs."""
    from meshscope.analyze.gate.json_forms import calibration_to_json
    from meshscope.analyze.output.text.gate import calibration_document

    found = calibration_to_json(_times(paths, margin, 2, runs), margin)
    following = next_command("gate", "selftest", *paths)
    show_document(output, lambda: found, partial(calibration_document, found), following)


def gate_history(
    paths: RunPaths,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write one row a run, as `otava analyze` reads it."),
    ] = None,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs: RunsOption = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Find the runs at which the step time changed: E-divisive over runs in the order given."""
    from meshscope.analyze.gate.change_points import MOST_VALUES
    from meshscope.analyze.gate.history_csv import history_csv
    from meshscope.analyze.gate.json_forms import history_to_json
    from meshscope.analyze.gate.loaded import baseline_of, require_steps
    from meshscope.analyze.output.text.gate import history_document
    from meshscope.analyze.wording.words import counted
    from meshscope.probe.schema.errors import ConfigError

    check_place(csv, "--csv")
    loaded = read_runs(paths, topology_file, runs, steps)
    if not _LEAST_HISTORY <= len(loaded) <= MOST_VALUES:
        raise ConfigError(
            message(
                "refused.runs_of_history",
                runs=counted(len(loaded), "run"),
                least=_LEAST_HISTORY,
                most=MOST_VALUES,
            ),
            where="history",
            remedy=message("advice.runs_in_order"),
        )
    for run in loaded:
        require_steps(run)
    made = baseline_of(loaded)
    if csv is not None:
        text = history_csv(made.runs, [run.began_unix_ns for run in loaded])
        csv.write_text(text, encoding="utf-8")
    found = history_to_json(made)
    following = next_command("gate", "baseline", "RUN...", "-o", "base.json")
    show_document(output, lambda: found, partial(history_document, found), following)

"""The verb that runs base and candidate in turn, and stops as soon as the pairs decide."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshscope.probe.schema.message import message

from .gate import AllowOption, MarginOption, allowed_names, check_margin
from .gate_inputs import read_runs
from .gate_outputs import (
    AnnotationsOption,
    GitlabOption,
    JunitOption,
    OpenmetricsOption,
    Outputs,
    SummaryOption,
)
from .open_capture import next_command
from .options import DEFAULT_RUNS, FormatOption, StepsOption, TopologyOption
from .output import Format, say, show_document

if TYPE_CHECKING:
    from meshscope.analyze.gate.loaded import LoadedRun
    from meshscope.analyze.gate.paired import Look
    from meshscope.analyze.gate.results import Check, GateResult

_MOST_PAIRS = 50
_PAIRS_OF_COUNTS = 2
"""So many show that a count does not vary by itself between equal runs."""
_STDERR = 2


def gate_ab(  # noqa: PLR0913 - the options of a verb
    base: Annotated[str, typer.Option(metavar="CMD", help="Launch command of the base.")],
    cand: Annotated[str, typer.Option(metavar="CMD", help="Launch command of the candidate.")],
    pairs: Annotated[
        int, typer.Option("--runs", min=1, max=_MOST_PAIRS, help="Most runs of each side.")
    ] = 5,
    margin: MarginOption = None,
    allow: AllowOption = None,
    junit: JunitOption = None,
    step_summary: SummaryOption = None,
    annotations: AnnotationsOption = False,
    gitlab: GitlabOption = None,
    openmetrics: OpenmetricsOption = None,
    topology_file: TopologyOption = None,
    steps: StepsOption = None,
    runs_dir: Annotated[
        Path, typer.Option(metavar="RUNS_DIR", envvar="MESHSCOPE_RUNS", help="Folder of runs.")
    ] = DEFAULT_RUNS,
    output: FormatOption = Format.TEXT,
) -> None:
    """Run base and candidate in turn under the probe and compare the pairs: stops early once they decide."""
    from meshscope.analyze.gate.json_forms import EXIT_CODES, pairs_to_json
    from meshscope.analyze.output.render import to_markdown
    from meshscope.analyze.output.text.gate import gate_document

    check_margin(margin)
    outputs = Outputs(
        junit=junit,
        step_summary=step_summary,
        annotations=annotations,
        gitlab=gitlab,
        openmetrics=openmetrics,
    )
    outputs.check()
    trial = _Trial(
        commands=(_words(base, "--base"), _words(cand, "--cand")),
        margin=margin,
        allow=allow or [],
        read=partial(_read, topology_file, runs_dir, steps),
        runs_dir=runs_dir,
    )
    result = trial.run(pairs)
    found = pairs_to_json(result, trial.looked, len(trial.sides[0]), pairs)
    found["runs"] = [[str(path) for path in side] for side in trial.paths]
    outputs.write(found, Path("meshscope-gate-ab"), lambda: to_markdown(gate_document(found)))
    following = next_command("compare", trial.paths[0][-1], trial.paths[1][-1])
    show_document(output, lambda: found, partial(gate_document, found), following)
    raise typer.Exit(EXIT_CODES[result.verdict])


@dataclass
class _Trial:
    """Base and candidate, run in turn."""

    commands: tuple[list[str], list[str]]
    margin: float | None
    allow: list[str]
    read: Any
    """Returns the run at a path."""
    runs_dir: Path
    sides: tuple[list[LoadedRun], list[LoadedRun]] = field(default_factory=lambda: ([], []))
    paths: tuple[list[Path], list[Path]] = field(default_factory=lambda: ([], []))
    looked: list[tuple[Look, Check]] = field(default_factory=list)
    name: str = field(default_factory=lambda: f"ab-{os.urandom(4).hex()}")

    def run(self, pairs: int) -> GateResult:
        """Run pairs until they decide; the side that goes first changes from pair to pair."""
        from meshscope.analyze.gate.paired import decides, planned_looks

        looks = {look.pairs: look for look in planned_looks(pairs)}
        for pair in range(1, pairs + 1):
            for side in (0, 1) if pair % 2 else (1, 0):
                self._add(side, pair)
            say(f"pair {pair} of {pairs} ended")
            if pair <= _PAIRS_OF_COUNTS and (result := self._at_once()) is not None:
                return result
            if (look := looks.get(pair)) is not None:
                result, check = self._look(look)
                if look.is_last or decides(check):
                    return result
        raise AssertionError("the last pair is a look")

    def _add(self, side: int, pair: int) -> None:
        run_id = f"{self.name}-{('base', 'cand')[side]}{pair}"
        _launch(self.commands[side], self.runs_dir, run_id)
        path = self.runs_dir / run_id
        self.paths[side].append(path)
        self.sides[side].append(self.read(path))

    def _at_once(self) -> GateResult | None:
        """Return the result of the first pairs where more cannot change it: another setup, other counts."""
        from meshscope.analyze.gate.results import Reason, Verdict

        result = self._compare(None)
        counted = any(check.reason in (Reason.MORE, Reason.FEWER) for check in result.checks)
        has_times = all(len(run.step_ns) for side in self.sides for run in side)
        is_constant = len(self.sides[0]) == _PAIRS_OF_COUNTS
        is_over = result.verdict is Verdict.FAIL and counted and is_constant
        if is_over or result.verdict is Verdict.INCOMPARABLE or not has_times:
            return result
        return None

    def _look(self, look: Look) -> tuple[GateResult, Check | None]:
        from meshscope.analyze.gate.judge import STEP

        result = self._compare(look)
        check = next((one for one in result.checks if one.metric == STEP), None)
        if check is not None:
            self.looked.append((look, check))
        return result, check

    def _compare(self, look: Look | None) -> GateResult:
        from meshscope.analyze.gate.compare import compare
        from meshscope.analyze.gate.loaded import baseline_of

        made = baseline_of(self.sides[0])
        allowed = allowed_names(made, self.allow)
        return compare(made, self.sides[1], margin=self.margin, allowed=allowed, look=look)


def _words(command: str, option: str) -> list[str]:
    from meshscope.probe.schema.errors import ConfigError

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            message("refused.reason", reason=error),
            where=option,
            remedy=message("advice.close_quotes"),
        ) from error
    if not words:
        raise ConfigError(
            message("refused.empty"),
            where=option,
            remedy=message("advice.write_command", option=option),
        )
    return words


def _launch(command: list[str], runs_dir: Path, run_id: str) -> None:
    """Run a command under the probe; what it prints goes to stderr.

    Raises:
        ConfigError: It fails.
    """
    from meshscope.probe.schema.errors import ConfigError

    program = [sys.executable, "-P", "-m", "meshscope", "run", "--no-agent"]
    place = ["--runs", str(runs_dir), "--run-id", run_id, "--"]
    done = subprocess.run([*program, *place, *command], stdout=_STDERR, check=False)
    if done.returncode:
        raise ConfigError(
            message("refused.exit_code", exit_code=done.returncode),
            where=shlex.join(command),
            remedy=message("advice.output_above"),
        )


def _read(topology_file: Path | None, runs: Path, steps: str | None, path: Path) -> LoadedRun:
    (run,) = read_runs([path], topology_file, runs, steps)
    return run

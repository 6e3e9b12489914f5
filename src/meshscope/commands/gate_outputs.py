"""The files that a gate writes for CI systems, beside its answer on stdout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshscope.probe.schema.message import message

if TYPE_CHECKING:
    from collections.abc import Callable

JunitOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML: one test a check.")
]
SummaryOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help='Also append Markdown, as to "$GITHUB_STEP_SUMMARY".'),
]
AnnotationsOption = Annotated[
    bool, typer.Option("--annotations", help="Also write annotations of GitHub Actions to stderr.")
]
GitlabOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write a GitLab code quality report.")
]
OpenmetricsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write OpenMetrics text.")
]


def check_place(file: Path | None, option: str) -> None:
    """Refuse a file that cannot be written before long work starts; None is no file.

    Raises:
        ConfigError: Its folder does not exist, or it is a folder.
    """
    from meshscope.probe.schema.errors import ConfigError

    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        what = "is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise ConfigError(
            message("refused.file_because", file=file, what=what),
            where=option,
            remedy=message("advice.file_in_folder"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where else the result goes."""

    junit: Path | None = None
    step_summary: Path | None = None
    annotations: bool = False
    gitlab: Path | None = None
    openmetrics: Path | None = None

    def check(self) -> None:
        """Refuse a place that cannot be written before long work starts.

        Raises:
            ConfigError: A folder does not exist, or the place is one.
        """
        files = {
            "--junit": self.junit,
            "--step-summary": self.step_summary,
            "--gitlab": self.gitlab,
            "--openmetrics": self.openmetrics,
        }
        for option, file in files.items():
            check_place(file, option)

    def write(self, found: dict[str, Any], source: Path, markdown: Callable[[], str]) -> None:
        """Write all that was asked for.

        Args:
            found: The JSON form of the gate.
            source: The file of the baseline or budget.
            markdown: Returns the result as Markdown.

        Raises:
            OSError: A file cannot be written.
        """
        from meshscope.analyze.output.text.gate_ci import (
            gate_to_annotations,
            gate_to_gitlab,
            gate_to_junit,
            gate_to_openmetrics,
            step_summary,
        )

        forms: tuple[tuple[Path | None, Callable[[], str]], ...] = (
            (self.junit, lambda: gate_to_junit(found)),
            (self.gitlab, lambda: gate_to_gitlab(found, source)),
            (self.openmetrics, lambda: gate_to_openmetrics(found)),
        )
        for file, form in forms:
            if file is not None:
                file.write_text(form(), encoding="utf-8")
        if self.step_summary is not None:
            # Other commands of the same step have their part of the page.
            with self.step_summary.open("a", encoding="utf-8") as page:
                page.write(step_summary(markdown()))
        if self.annotations:
            typer.echo(gate_to_annotations(found), err=True, nl=False)

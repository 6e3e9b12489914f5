"""Arguments and options that several verbs share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


RunPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A run directory, or another tool's traces.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to write the result.")]

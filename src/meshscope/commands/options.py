"""Arguments and options that several verbs share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from meshscope.probe.schema.message import message

from .fetching import fetched
from .output import Format


def named_path(text: str) -> Path:
    """Return what was given as a path, or where the copy of what lies in a store is.

    An unset variable in quotes is no folder.
    """
    if not text:
        raise typer.BadParameter(str(message("usage.empty_path")))
    return fetched(text)


def require_place(out: Path, *, is_file: bool) -> None:
    """Refuse a place that cannot be meant, before the capture is read.

    A folder for a file, a file for a folder, and a folder that is not there: a slip in the path
    would make a tree of new ones.

    Raises:
        ConfigError: Nothing can be written there.
    """
    from meshscope.probe.schema.errors import ConfigError

    if out.exists() and out.is_dir() == is_file:
        found, wanted = ("a folder", "file") if is_file else ("a file", "folder")
        raise ConfigError(
            message("refused.foreign", what=found),
            where=str(out),
            remedy=message("advice.name_out", wanted=wanted),
        )
    if not out.absolute().parent.is_dir():
        parent = out.parent
        raise ConfigError(
            message("refused.no_parent", parent=parent),
            where=str(out),
            remedy=message("advice.make_folder", command=shlex.join(["mkdir", "-p", str(parent)])),
        )


RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        parser=named_path,
        help="A run directory or another tool's traces; also in object stores (s3://…).",
    ),
]
TopologyOption = Annotated[
    Path | None,
    typer.Option("--topology", metavar="FILE", help="TOML file that states mesh, groups, kernels."),
]
StepsOption = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="FIRST:LAST",
        help="Only these steps, both included; 3000: is from there on, :500 up to there.",
    ),
]
MOST_TIMEOUT_S = 86_400.0
"""Nobody waits longer at a terminal."""
DEFAULT_RUNS = Path("meshscope_runs")
RunsOption = Annotated[
    Path,
    typer.Option(
        metavar="RUNS_DIR",
        envvar="MESHSCOPE_RUNS",
        help="Folder of runs; also keeps other tools' traces once read.",
    ),
]
ManyWorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="For many ranks: answer from summaries first, made by this many processes.",
    ),
]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="Memory of each worker and of the account, such as 4GB: as many steps as fit.",
    ),
]
EveryStepOption = Annotated[
    bool,
    typer.Option(
        "--every-step",
        help="Of a run too large for memory: account for all its steps, by windows in parallel.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Scheduler of a Dask cluster whose workers see the same files: tcp://HOST:8786.",
    ),
]


def named_run(run: Path | None, runs: Path) -> Path | None:
    """Return the run directory that is meant: a path, or the name of one in the folder of runs."""
    if run is None or run.exists() or len(run.parts) > 1:
        return run
    return runs / run


FormatOption = Annotated[Format, typer.Option("--format", help="How to write the result.")]

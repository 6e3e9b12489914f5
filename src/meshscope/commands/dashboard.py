"""The verb that serves the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshscope.analyze.wording.command_line import command_line
from meshscope.probe.schema.message import message

from .arming import arm_aside
from .processes import are_gone


def dashboard(
    runs_dir: Annotated[
        Path, typer.Argument(metavar="RUNS_DIR", help="Folder of run directories.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8050,
    token: Annotated[
        str | None,
        typer.Option(help="Access token; generated and printed if the host is not loopback."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the access token; other users can read command-line options.",
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where a reverse proxy serves it, as https://cluster.example/meshscope/.",
        ),
    ] = None,
) -> None:
    """Browse runs: overview, findings, timeline, mesh, memory, kernels; compare two."""
    from meshscope.dashboard import serve
    from meshscope.probe.schema.errors import RunDirectoryError
    from meshscope.probe.schema.rundir import is_run_directory

    if is_run_directory(runs_dir):
        raise RunDirectoryError(
            message("refused.one_run"),
            where=str(runs_dir),
            remedy=message(
                "advice.run_command", command=command_line("dashboard", runs_dir.resolve().parent)
            ),
        )
    if token_file is not None:
        token = _token_of(token_file)
    serve(
        runs_dir,
        host=host,
        port=port,
        token=token,
        public=public_url,
        are_gone=are_gone,
        arm=arm_aside,
    )


def _token_of(file: Path) -> str:
    """Return the token in a file.

    Raises:
        ConfigError: It cannot be read, others can read it, or it holds none.
    """
    from meshscope.probe.schema.errors import ConfigError

    try:
        is_shared = file.stat().st_mode & 0o077
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(message("refused.unreadable", error=error), where=str(file)) from error
    if is_shared:
        raise ConfigError(
            message("refused.no_secret"), where=str(file), remedy=message("advice.chmod", file=file)
        )
    if not token or len(token.split()) > 1:
        raise ConfigError(message("refused.no_token"), where=str(file))
    return token

"""The commands. Heavy imports live inside them, so that ``--help`` is quick.

Data goes to stdout, progress and errors to stderr. Exit codes: 0 success (or a
passed gate), 1 a failed gate, 2 bad input or usage; ``run`` passes on the exit
code of what it ran. This is the only place that turns errors into exit codes.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="meshscope",
    help="Where the FLOPs of a 3D-parallel training run went.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


RunPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A run directory, or another tool's traces.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to write the result.")]


@app.command()
def demo(
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Serve the dashboard after the diagnosis.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run and the truth; a new temporary one if not given."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the dashboard.")] = 8050,
) -> None:
    """Train 8 ranks with one slow rank, find it, and compare with the truth."""
    from meshscope.demo import run_demo

    result = run_demo(out)
    if serve:
        from meshscope.dashboard import serve as serve_dashboard

        serve_dashboard(result.runs_dir, port=port)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The launch command, after --.")],
    runs: Annotated[Path, typer.Option(help="Folder that holds the run directories.")] = Path(
        "meshscope_runs"
    ),
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run; a time stamp if not given.")
    ] = None,
) -> None:
    """Run a launch command with the probe in every rank: meshscope run -- torchrun … train.py."""
    from meshscope.probe.launch import run as launch

    code = launch(command, runs, run_id=run_id)
    raise typer.Exit(code)


@app.command()
def diagnose(
    path: RunPath,
    output: FormatOption = Format.TEXT,
) -> None:
    """Account for the step time of a run: waterfall, findings, stragglers, what was not seen."""
    from meshscope.analyze import diagnose as analyse
    from meshscope.analyze import load_trace
    from meshscope.analyze.exchange import diagnosis_to_json
    from meshscope.analyze.report import to_text

    result = analyse(load_trace(path))
    if output is Format.JSON:
        _print_json(diagnosis_to_json(result))
        return
    _emit(to_text(result, markdown=output is Format.MARKDOWN))
    if output is Format.TEXT:
        _emit(f"\nNext: meshscope dashboard {path.resolve().parent}")


@app.command()
def ingest(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Traces of other tools: files or folders."),
    ],
    runs: Annotated[Path, typer.Option(help="Folder that gets the run directories.")] = Path(
        "meshscope_runs"
    ),
) -> None:
    """Turn other tools' traces into run directories, and say what was understood."""
    from meshscope.analyze.ingest import ingest as read
    from meshscope.analyze.ingest import understood
    from meshscope.probe.clock import now_ns

    for path in paths:
        start_ns = now_ns()
        result = read(path, runs)
        seconds = (now_ns() - start_ns) / 1e9
        size = result.source_bytes / 1e6
        _emit(
            f"{path}: {size:,.1f} MB in {seconds:.2f} s ({size / seconds:,.0f} MB/s)"
            + (", known from before" if result.reused else "")
        )
        _emit("\n".join(f"  {line}" for line in understood(result.trace)))
        _emit(f"\nNext: meshscope diagnose {result.path}")


@app.command()
def breakdown(
    path: RunPath,
    step: Annotated[
        int | None, typer.Option(help="One step; all device events if not given.")
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """Split each rank's device time: computation, exposed communication and copies, idle."""
    from meshscope.analyze import load_trace
    from meshscope.analyze.exchange import breakdown_to_json
    from meshscope.analyze.report import breakdown_to_text

    result = breakdown_to_json(load_trace(path), step)
    if output is Format.JSON:
        _print_json(result)
        return
    _emit(breakdown_to_text(result, markdown=output is Format.MARKDOWN))
    if output is Format.TEXT:
        _emit(f"\nNext: meshscope diagnose {path}")


@app.command()
def collectives(
    path: RunPath,
    output: FormatOption = Format.TEXT,
) -> None:
    """Match collectives across ranks: wire time, waiting, who arrived last, bus bandwidth."""
    from meshscope.analyze import load_trace
    from meshscope.analyze.exchange import collectives_to_json
    from meshscope.analyze.report import collectives_to_text

    result = collectives_to_json(load_trace(path))
    if output is Format.JSON:
        _print_json(result)
        return
    _emit(collectives_to_text(result, markdown=output is Format.MARKDOWN))
    if output is Format.TEXT:
        _emit(f"\nNext: meshscope diagnose {path}")


class Target(StrEnum):
    """A form that other tools read."""

    PERFETTO = "perfetto"
    CSV = "csv"


@app.command()
def export(
    path: RunPath,
    out: Annotated[Path, typer.Option(help="The file (perfetto; .gz compresses) or folder (csv).")],
    to: Annotated[Target, typer.Option(help="What to write.")] = Target.PERFETTO,
) -> None:
    """Write a capture for other tools: a timeline for the Perfetto UI, or tables as CSV."""
    from meshscope.analyze import load_trace
    from meshscope.analyze.export import export_csv, export_perfetto

    trace = load_trace(path)
    if to is Target.CSV:
        files = export_csv(trace, out)
        _emit("\n".join(str(file) for file in files))
        return
    count = export_perfetto(trace, out)
    _emit(f"{out}: {count:,} events\n\nNext: open it in the Perfetto UI")


@app.command()
def gate(
    path: RunPath,
    budget: Annotated[Path, typer.Option(help="TOML file with a [budget] table.")],
    output: FormatOption = Format.TEXT,
) -> None:
    """Check a run against absolute budgets: exit 0 if all hold, 1 if one fails, 2 if one is unknown."""
    from meshscope.analyze import diagnose as analyse
    from meshscope.analyze import load_trace
    from meshscope.analyze.gate import check, exit_code, load_budgets, to_rows

    budgets = load_budgets(budget)
    verdicts = check(analyse(load_trace(path)), budgets)
    if output is Format.JSON:
        _print_json({"version": 1, "checks": to_rows(verdicts)})
    else:
        for verdict in verdicts:
            _emit(verdict.sentence())
        if output is Format.TEXT:
            _emit(f"\nNext: meshscope diagnose {path}")
    raise typer.Exit(exit_code(verdicts))


@app.command()
def dashboard(
    runs_dir: Annotated[
        Path, typer.Argument(metavar="RUNS_DIR", help="Folder of run directories.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8050,
    token: Annotated[
        str | None, typer.Option(help="Access token; made up and printed for a non-loopback host.")
    ] = None,
) -> None:
    """Browse runs: overview, findings, timeline, mesh."""
    from meshscope.dashboard import serve

    serve(runs_dir, host=host, port=port, token=token)


def _print_version(wanted: bool) -> None:
    if wanted:
        from meshscope import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    if debug:
        os.environ["MESHSCOPE_DEBUG"] = "1"


def _print_json(value: dict[str, Any]) -> None:
    """Write JSON; a value that is not finite becomes null, and a numpy scalar its number."""
    import msgspec

    encoded = msgspec.json.encode(value, enc_hook=lambda scalar: scalar.item())
    _emit(msgspec.json.format(encoded, indent=1).decode())


def _emit(text: str) -> None:
    """Write a result to stdout; a reader that has gone (head, less) ends no command."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line; the entry point of the ``meshscope`` script."""
    from meshscope.probe.schema.errors import MeshscopeError

    try:
        app()
    except MeshscopeError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        extra = _extra_of(error.name or "")
        if extra is None:
            raise
        _fail(f"{error.name} is not installed. Install it with: pip install 'meshscope[{extra}]'")
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}")


def _extra_of(module: str) -> str | None:
    """Return the extra that brings a module."""
    top = module.split(".", maxsplit=1)[0]
    if top in ("dash", "plotly", "dash_mantine_components", "dash_ag_grid", "waitress", "flask"):
        return "dashboard"
    return "trainer" if top == "torch" else None


def _fail(message: str) -> None:
    if os.environ.get("MESHSCOPE_DEBUG") == "1":
        raise
    typer.echo(f"meshscope: {message}", err=True)
    raise SystemExit(2)

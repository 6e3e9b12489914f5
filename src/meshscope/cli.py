"""The command line: its verbs, the options before them, and the exit codes.

Data goes to stdout, progress and errors to stderr. Exit codes: 0 success (or a
passed gate), 1 a failed gate, 2 bad input or usage; ``run`` passes on the exit
code of what it ran. This is the only place that turns errors into exit codes.
"""

from __future__ import annotations

import errno
import gc
import inspect
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from io import TextIOWrapper
from typing import Annotated

import typer

from meshscope import commands

from .commands.gate_verbs import CHECK, GateGroup
from .commands.output import say
from .commands.starting import PlainCommand, PlainGroup, load_numpy_with_one_thread, only_the_verb
from .commands.usage import UsageError, usage_words

app = typer.Typer(
    name="meshscope",
    cls=PlainGroup,
    help="Where the FLOPs of a 3D-parallel training run went.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_OBJECTS_BEFORE_COLLECTION = 300_000
"""More than the imports of any verb make."""


def _summary(verb: Callable[..., None]) -> str:
    """Return the first clause of a verb's help, for the list of verbs."""
    return re.split(r"[:;]|\.\n|\.$", inspect.getdoc(verb) or "", maxsplit=1)[0]


def _reading(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb that reads a capture once and ends: one that waits for no more than it uses."""

    @wraps(verb)
    def begin(*arguments: object, **options: object) -> None:
        load_numpy_with_one_thread()
        from meshscope.analyze.tables.pandas_at_first_use import pandas_at_first_use

        pandas_at_first_use()
        verb(*arguments, **options)

    return begin


app.command(short_help=_summary(commands.demo))(commands.demo)
# What follows the first word of the launch command belongs to it, options included.
for _launching in (commands.run, commands.doctor):
    app.command(
        short_help=_summary(_launching), context_settings={"allow_interspersed_args": False}
    )(_launching)
for _verb in (commands.agent, commands.arm, commands.attach, commands.watch):
    app.command(short_help=_summary(_verb))(_verb)
for _reader in (
    commands.diagnose,
    commands.report,
    commands.stragglers,
    commands.summarize,
    commands.compact,
    commands.critical_path,
    commands.whatif,
    commands.balance,
    commands.plan,
    commands.compare,
    commands.ingest,
    commands.breakdown,
    commands.collectives,
    commands.topology,
    commands.kernels,
    commands.export,
):
    app.command(cls=PlainCommand, short_help=_summary(_reader))(_reading(_reader))
_gate = typer.Typer(cls=GateGroup, no_args_is_help=True, rich_markup_mode=None)
_gate.command(CHECK, cls=PlainCommand, hidden=True)(_reading(commands.gate))
_gate_verbs: dict[str, Callable[..., None]] = {
    "baseline": commands.gate_baseline,
    "ab": commands.gate_ab,
    "selftest": commands.gate_selftest,
    "calibrate": commands.gate_calibrate,
    "history": commands.gate_history,
}
for _name, _reader_of in _gate_verbs.items():
    _gate.command(_name, cls=PlainCommand, short_help=_summary(_reader_of))(_reading(_reader_of))
app.add_typer(_gate, name="gate", help=commands.gate.__doc__, short_help=_summary(commands.gate))
app.command(short_help=_summary(commands.dashboard))(commands.dashboard)


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


def main() -> None:
    """Run the command line; the entry point of the ``meshscope`` script."""
    # Imports make many objects and no garbage: looking for some took a sixth of a short command.
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    _write_any_name()
    from meshscope.probe.schema.errors import MeshscopeError

    try:
        raise SystemExit(only_the_verb(app, sys.argv[1:])(standalone_mode=False))
    except UsageError as error:
        words = usage_words(error)
        if words is not None:
            _fail(words)
        error.show()  # type: ignore[attr-defined]
        raise SystemExit(2) from None
    except typer.Abort:
        say("called off")
        raise SystemExit(1) from None
    except MeshscopeError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        extra = _extra_of(error.name or "")
        if extra is None:
            raise
        _fail(f"{error.name} is not installed. Install it with: pip install 'meshscope[{extra}]'")
    except OSError as error:
        _fail(_of_system(error))
    finally:
        # Python looks for garbage as it ends: a tenth of a short command, for memory that goes anyway.
        gc.freeze()


def _of_system(error: OSError) -> str:
    """Return what the system refused, and where; tables without a name lie in the temporary folder."""
    what = os.strerror(error.errno) if error.errno else str(error)
    if error.filename:
        return f"{error.filename}: {what}"
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        from tempfile import gettempdir

        from meshscope.probe.schema.message import message

        return f"{gettempdir()}: {what}. {message('advice.tmpdir')}"
    return what


def _write_any_name() -> None:
    """Let stdout take names that its encoding lacks, as where the locale is C: escaped, as on stderr."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _extra_of(module: str) -> str | None:
    """Return the extra that brings a module."""
    top = module.split(".", maxsplit=1)[0]
    if top in ("dash", "plotly", "dash_mantine_components", "dash_ag_grid", "waitress", "flask"):
        return "dashboard"
    if top == "scipy":
        return "balance"
    if top in ("distributed", "dask"):
        return "cluster"
    return "trainer" if top == "torch" else None


def _fail(message: str) -> None:
    if os.environ.get("MESHSCOPE_DEBUG") == "1":
        raise
    say(message)
    raise SystemExit(2)

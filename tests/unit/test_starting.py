"""What a command leaves out as it starts changes nothing that it does."""

import os
import platform
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from meshscope.cli import app
from meshscope.commands.options import named_path
from meshscope.commands.starting import PlainCommand, only_the_verb


class _Shape(StrEnum):
    ROUND = "round"
    FLAT = "flat"


def _verb(
    paths: Annotated[list[Path], typer.Argument(parser=named_path)],
    folder: Annotated[Path, typer.Option(envvar="STARTING_FOLDER")] = Path("here"),
    there: Annotated[Path | None, typer.Option(exists=True)] = None,
    text: Annotated[str | None, typer.Option()] = None,
    count: Annotated[int | None, typer.Option(min=1)] = None,
    limit: Annotated[float, typer.Option(max=2.0)] = 1.0,
    shape: Annotated[_Shape, typer.Option()] = _Shape.ROUND,
    names: Annotated[list[str] | None, typer.Option("--name")] = None,
    loud: Annotated[bool, typer.Option()] = False,
) -> None:
    typer.echo(repr((paths, folder, there, text, count, limit, shape, names, loud)))


def _outcome(command_class, words, environment=None):
    verbs = typer.Typer(add_completion=False, rich_markup_mode=None)
    verbs.command(cls=command_class)(_verb)
    done = CliRunner().invoke(verbs, words, env=environment)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    "words",
    [
        ["a"],
        ["a", "b", "--text", "", "--name", "x", "--name", "y", "--loud"],
        ["a", "--folder", "/nowhere/at/all", "--shape", "flat", "--count", "3", "--limit", "0.5"],
        ["a", "--folder", "/"],
        ["a", "--there", "/"],
        ["a", "--there", "/nowhere/at/all"],
        ["a", "--count", "0"],
        ["a", "--limit", "9"],
        ["a", "--shape", "square"],
        [""],
        ["a", ""],
        [],
        ["--help"],
    ],
)
def test_parameters_are_those_that_typer_gives(words):
    """Fails when a value, a default or an error depends on the shortcut past pydantic."""
    assert _outcome(PlainCommand, words) == _outcome(None, words)


def test_variables_of_the_environment_count():
    """Fails when the shortcut forgets an option that is set by a variable."""
    code, output = _outcome(PlainCommand, ["a"], {"STARTING_FOLDER": "/tmp"})
    assert code == 0
    assert "PosixPath('/tmp')" in output


def test_only_the_named_verb_is_made():
    """Fails when a verb waits for the options of all others, or a slip finds no verbs to propose."""
    names = [
        one.callback.__name__ for one in only_the_verb(app, ["critical-path"]).registered_commands
    ]
    assert names == ["critical_path"]
    assert [one.name for one in only_the_verb(app, ["gate"]).registered_groups] == ["gate"]
    for words in ([], ["ingst"], ["--help"], ["--debug", "ingest"]):
        assert only_the_verb(app, words) is app


def _in_a_new_process(code, **environment):
    import os

    without = {name: text for name, text in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=without | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


_LOAD = (
    "import os\n"
    "from meshscope.commands.starting import load_numpy_with_one_thread as load\n"
    "load()\n"
    "print(len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to count threads")
def test_numpy_starts_no_threads_and_leaves_no_trace():
    """Fails when each command starts a thread a core, or what it launches gets one thread for all."""
    assert _in_a_new_process(_LOAD) == ["1", "None"]


def test_a_stated_number_of_threads_stays():
    """Fails when the number of threads that the user asked for is lost."""
    assert _in_a_new_process(_LOAD, OPENBLAS_NUM_THREADS="2")[1] == "2"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is of glibc")
def test_memory_of_large_arrays_is_used_again():
    """Fails when each array of thousands of ranks is handed out by the system anew, as long as its arithmetic takes."""
    words = """
import resource
import numpy as np
from meshscope.commands.starting import keep_freed_memory

keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 23)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 100


def test_tables_of_a_command_lie_in_the_memory_that_arrays_use_again(tmp_path):
    """Fails when memory is asked for anew while a run is read: a fifth of the diagnosis of thousands of ranks."""
    words = f"""
import pyarrow as pa
from pathlib import Path
from meshscope.commands.open_capture import open_trace
from meshscope.analyze.synthetic import SyntheticJob, make_simulation, record, write_run
from meshscope.probe.schema.layout import ParallelLayout

job = SyntheticJob(layout=ParallelLayout(tp=1, pp=2, dp=1), microbatches=2, steps=2)
run = write_run(job, record(make_simulation(job)), None, Path({str(tmp_path)!r}))
pools = [pa.default_memory_pool().backend_name != "system"]
for most in (100_000, None):
    open_trace(run, most_rows=most)
    pools.append(pa.default_memory_pool().backend_name == "system")
print(pools)
"""
    given = {name: value for name, value in os.environ.items() if not name.startswith("ARROW_")}
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, check=True, text=True, env=given
    )
    assert done.stdout.strip() == "[True, False, True]"

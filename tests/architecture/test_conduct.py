"""Calls that the sources must not make, and what every test must say."""

import ast
import re

CLOCK_CALLS = {
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "thread_time",
    "thread_time_ns",
    "process_time",
    "process_time_ns",
    "clock_gettime",
    "clock_gettime_ns",
}
CLOCK_FILES = ("probe/clock.py", "dashboard/runs/clock.py")


def test_time_is_injected(sources):
    """Fails when a file other than the clocks reads a clock, so that its tests cannot be exact."""
    found = [
        f"{source.name}:{line}"
        for source in sources
        if source.name not in CLOCK_FILES
        for line in _clock_reads(source.tree)
    ]
    assert not found


def test_the_device_is_never_synchronised(sources):
    """Fails when the probe or the trainer stops the device, which destroys what is measured."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources
        if source.name.startswith(("probe/", "reference_trainer/"))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "synchronize"
        and "cuda" in ast.unparse(node.value)
    ]
    assert not found


def test_nothing_is_pickled(sources):
    """Fails when a source can run code that it reads from a capture."""
    found = [
        source.name
        for source in sources
        if re.search(r"^\s*(import|from) (pickle|marshal|shelve|dill)\b", source.text, re.MULTILINE)
        and source.name not in UNPICKLERS
    ]
    assert not found


def test_no_text_is_run_as_code(sources):
    """Fails when a source evaluates text, which could have come from a file or a socket."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("eval", "exec", "compile", "__import__")
    ]
    assert not found


UNPICKLERS = {
    "analyze/read/plain_pickle.py": "snapshots of 100 MB take half a minute in Python alone; "
    "only programs of plain operations are handed over",
}
"""Files that read foreign pickles with every global refused, with the reason."""


def test_every_test_says_what_breaks(test_sources):
    """Fails when a test function has no docstring."""
    silent = [
        f"{source.name}:{node.lineno} {node.name}"
        for source in test_sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and source.path.name.startswith("test_")
        and node.name.startswith("test")
        and not ast.get_docstring(node)
    ]
    assert not silent


def test_no_path_of_one_machine(tracked_files, project_dir):
    """Fails when a file names a directory that exists on one machine only."""
    personal = re.compile(rb"(?<![\w.~-])/(?:home|root|Users|work)/[A-Za-z0-9_]")
    found = []
    for path in tracked_files:
        content = path.read_bytes()
        if b"\0" not in content and personal.search(content):
            found.append(path.relative_to(project_dir).as_posix())
    assert not found


def _clock_reads(tree: ast.Module) -> list[int]:
    """Return the lines that read a clock of the time module, under whatever name."""
    modules = {"time"}
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname for a in node.names if a.name == "time" and a.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            lines += [node.lineno for alias in node.names if alias.name in CLOCK_CALLS]
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in CLOCK_CALLS
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            lines.append(node.lineno)
    return lines

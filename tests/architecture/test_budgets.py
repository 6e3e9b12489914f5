"""Sizes and names that keep the sources readable."""

import ast
import re

FUNCTION_LINES = 60
FILE_LINES = 400
TRAINER_FILE_LINES = 300
"""The trainer is read as an example, one axis of the mesh a file."""
METHODS = 10
"""Public methods of a class."""
BANNED_NAMES = {"utils", "helpers", "common", "misc", "manager", "core"}

LONG_FUNCTIONS: dict[str, str] = {}
"""``file:function`` over the budget, with the reason."""
LONG_FILES: dict[str, str] = {}
"""File over the budget, with the reason."""
WIDE_CLASSES = {
    "probe/recording/recorder.py:Recorder": "one method for each kind of record, which hooks call directly",
    "probe/session/session.py:Session": "the four parts of its life, what training code calls, and what "
    "the control socket asks for",
}
"""``file:class`` with more public methods, with the reason."""


def test_functions_fit_on_a_screen(sources):
    """Fails when a function grows past the budget without a stated reason."""
    long = {
        f"{source.name}:{node.name}": node.end_lineno - node.lineno + 1
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert long.keys() == LONG_FUNCTIONS.keys(), long


def test_files_have_one_purpose(sources):
    """Fails when a file grows past the budget without a stated reason."""
    long = {
        source.name: lines
        for source in sources
        if (lines := len(source.text.splitlines())) > _file_budget(source.name)
    }
    assert long.keys() == LONG_FILES.keys(), long


def _file_budget(name):
    return TRAINER_FILE_LINES if name.startswith("reference_trainer/") else FILE_LINES


def test_classes_stay_small(sources):
    """Fails when a class collects more public methods than one can keep in mind."""
    wide = {}
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and (count := _public_methods(node)) > METHODS:
                wide[f"{source.name}:{node.name}"] = count
    assert wide.keys() == WIDE_CLASSES.keys(), wide


def test_modules_are_named_after_what_they_hold(sources):
    """Fails when a file takes a name under which anything can be put."""
    assert not [source.name for source in sources if source.path.stem in BANNED_NAMES]


def test_nothing_is_left_for_later(sources, test_sources):
    """Fails when a note about unfinished work stays in the sources."""
    note = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    assert not [source.name for source in [*sources, *test_sources] if note.search(source.text)]


def _public_methods(node: ast.ClassDef) -> int:
    return sum(
        isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_")
        for item in node.body
    )

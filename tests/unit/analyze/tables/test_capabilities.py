"""What captures of each program can show."""

import ast

import pytest
from tests.tables import trace_of

from meshscope.analyze.synthetic import SYNTHETIC, SyntheticJob, generate
from meshscope.analyze.tables.capabilities import (
    CAPABILITIES,
    FLIGHT_RECORDER,
    OWN,
    Capabilities,
)
from meshscope.probe.schema.layout import ParallelLayout

_COMPARED = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def origins_of_importers(folder):
    """Return the origins that the modules of a folder write into their traces."""
    constants = {"SYNTHETIC": SYNTHETIC, "FLIGHT_RECORDER": FLIGHT_RECORDER}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "origin":
                value = node.value
                if isinstance(value, ast.Constant):
                    yield value.value
                elif isinstance(value, ast.Name):
                    yield constants[value.id]


OF_THE_FILE = {
    "explain/straggler_metrics/source.py",
    "findings/comparison.py",
    "output/text/diagnosis.py",
}
"""These ask which file, or pair of files, it is: a simulated one, two of one kind, one with other text."""


def names_origin(node):
    """Return whether an expression is the origin of a trace, or of what was kept of it."""
    if isinstance(node, ast.Attribute):
        return node.attr == "origin"
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "origin"
    if isinstance(node, ast.Call):
        named = [one.value for one in node.args if isinstance(one, ast.Constant)]
        return getattr(node.func, "attr", "") == "get" and named[:1] == ["origin"]
    return False


def test_every_record_is_of_a_program(project_dir):
    """Fails when a record is misspelled: captures would be judged as any profiler's."""
    found = set(origins_of_importers(project_dir / "analyze" / "read"))
    assert len(found) >= 7
    assert set(CAPABILITIES) <= found | {OWN, SYNTHETIC}


def test_a_capture_without_a_record_is_any_profilers():
    """Fails when a new importer ends in a traceback until somebody adds what it can show."""
    assert trace_of(origin="new").capabilities == Capabilities()


def test_no_analysis_asks_for_the_name_of_a_program(project_dir):
    """Fails when what a capture can show is decided by its origin in place of a capability."""
    asked = [
        f"{path.relative_to(project_dir)}:{node.lineno}"
        for path in (project_dir / "analyze").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], _COMPARED)
        and any(names_origin(side) for side in (node.left, *node.comparators))
        and path.relative_to(project_dir / "analyze").as_posix() not in OF_THE_FILE
    ]
    assert asked == []


@pytest.mark.parametrize("name", ["begins_with_process", "sees_every_end", "states_mesh"])
def test_a_simulated_job_claims_nothing_of_a_process(name):
    """Fails when a simulated job is read as if a probe or a dump had recorded it."""
    trace, _ = generate(SyntheticJob(layout=ParallelLayout(dp=2), steps=2))
    assert trace.origin == SYNTHETIC
    assert not getattr(trace.capabilities, name)

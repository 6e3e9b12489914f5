"""CI runs some cases of tests that combine much."""

import importlib

import pytest
from tests.sampled import left_out

SAMPLED = ("replicas", "combinations", "pipelines")
MODULES = (*(f"test_trainer_{name}" for name in SAMPLED), "test_split_equality")


class _Test:
    def __init__(self, nodeid, keep=None):
        self.nodeid = nodeid
        self.keep = keep

    def get_closest_marker(self, name):
        return None if self.keep is None else getattr(pytest.mark, name)(keep=self.keep).mark


def test_what_no_mark_keeps_is_left_out():
    """Fails when CI runs all cases, or leaves out a test without a mark."""
    plain, few, other = (
        _Test("a.py::plain[x]"),
        _Test("a.py::f[x]", "xy"),
        _Test("a.py::f[z]", "xy"),
    )
    assert left_out([plain, few, other]) == [other]


def test_a_test_without_a_kept_case_is_left_out():
    """Fails when CI runs what only a machine at rest can judge."""
    assert left_out([_Test("a.py::f", ())]) != []


def test_a_case_that_is_asked_for_alone_runs():
    """Fails when nobody can run a left-out case by its name in CI."""
    assert left_out([_Test("a.py::f[z]", "xy")]) == []


@pytest.mark.parametrize("name", MODULES)
def test_the_kept_cases_exist(name):
    """Fails when a case is renamed and CI quietly stops to run it."""
    module = importlib.import_module(f"tests.distributed.{name}")
    tests = [own for own in vars(module).values() if hasattr(own, "pytestmark")]
    seen = 0
    for test in tests:
        marks = {mark.name: mark for mark in test.pytestmark}
        if "sampled" in marks:
            seen += 1
            cases = marks["parametrize"].args[1]
            ids = {"-".join(map(str, [case] if isinstance(case, str) else case)) for case in cases}
            assert set(marks["sampled"].kwargs["keep"]) <= ids
    assert seen

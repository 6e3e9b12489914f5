"""CI runs some cases of tests that combine much."""

import importlib

import pytest
from tests.sampled import left_out

SAMPLED = ("replicas", "combinations", "pipelines")
MODULES = (*(f"test_trainer_{name}" for name in SAMPLED), "test_split_equality")


class _Test:
    def __init__(self, nodeid, keep=None, **said):
        self.nodeid = nodeid
        self.said = said if keep is None else {"keep": keep}

    def get_closest_marker(self, name):
        return getattr(pytest.mark, name)(**self.said).mark if self.said else None


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


def test_one_case_of_several_runs_whatever_their_order():
    """Fails when CI runs all seeds of a test, or other ones in another order."""
    cases = [_Test(f"a.py::f[{seed}]", every=3) for seed in range(7)]
    for order in (cases, cases[::-1]):
        assert {own.nodeid for own in left_out(order)} == {
            f"a.py::f[{seed}]" for seed in (1, 2, 4, 5)
        }
    assert left_out([cases[1]]) == []


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

"""The quick part of the truth suite; ``make truth`` runs all of it and prints the table."""

import pytest
from tests.truth.matrix.cases import cases
from tests.truth.matrix.judge import judge
from tests.truth.matrix.table import is_hit, macro_f1, report, wilson

ROWS = 17


@pytest.fixture(scope="module")
def verdicts():
    """Return one case of each row of the fault matrix, diagnosed."""
    return [judge(case) for case in cases(ROWS)]


def test_every_fault_is_the_first_finding(verdicts):
    """A fault would be missed, take another's name, or be looked for at the wrong place."""
    missed = [verdict.case.row for verdict in verdicts if not is_hit(verdict)]
    assert not missed
    assert len({verdict.case.row for verdict in verdicts}) == ROWS


def test_removal_gains_are_those_of_the_paired_jobs(verdicts):
    """A repair would be promised to return more or less than it does."""
    far = {
        verdict.case.row: verdict.bar_error
        for verdict in verdicts
        if verdict.bar_error is not None and verdict.bar_error > 0.01
    }
    assert not far


def test_no_healthy_rank_is_blamed(verdicts):
    """Somebody would swap a machine that works."""
    assert sum(verdict.false_suspects for verdict in verdicts) == 0


def test_the_table_names_its_misses(verdicts):
    """The suite would look better than it is."""
    text = report(verdicts)
    assert text.count("\n| ") >= ROWS
    assert text.endswith("Misses:")
    assert macro_f1(verdicts) == 1.0


def test_intervals_are_those_of_the_paper():
    """Rates of few cases would look certain."""
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)

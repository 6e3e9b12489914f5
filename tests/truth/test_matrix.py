"""The quick part of the truth suite; ``make truth`` runs all of it and prints the table."""

import pytest
from tests.truth.live.suite import cases as live_cases
from tests.truth.matrix.cases import BUBBLE, SEED, cases
from tests.truth.matrix.judge import judge
from tests.truth.matrix.pairs import true_gains, true_shares
from tests.truth.matrix.rows import ROWS
from tests.truth.matrix.table import is_hit, macro_f1, report, wilson

from meshscope.analyze.synthetic import truth_of


@pytest.fixture(scope="module")
def verdicts():
    """Return one case of each row of the fault matrix, diagnosed."""
    return [judge(case) for case in cases(len(ROWS))]


def test_every_fault_is_the_first_finding(verdicts):
    """A fault would be missed, take another's name, or be looked for at the wrong place."""
    missed = [verdict.case.row for verdict in verdicts if not is_hit(verdict)]
    assert not missed
    assert {verdict.case.row for verdict in verdicts} == set(ROWS)


def test_removal_gains_are_those_of_the_paired_jobs(verdicts):
    """A repair would be promised to return more or less than it does."""
    far = {
        verdict.case.row: verdict.bar_error
        for verdict in verdicts
        if verdict.bar_error is not None and verdict.bar_error > 0.01
    }
    assert not far


def test_intervals_hold_the_true_gains(verdicts):
    """Fails when the error that is shown beside a removal gain is smaller than the error it has."""
    known = [verdict for verdict in verdicts if verdict.interval is not None]
    held = [v for v in known if v.interval[0] <= v.true_gain <= v.interval[1]]
    assert len(known) >= 8
    assert len(held) >= len(known) - 1


def test_no_healthy_rank_is_blamed(verdicts):
    """Somebody would swap a machine that works."""
    assert sum(verdict.false_suspects for verdict in verdicts) == 0


def test_clock_skew_changes_no_bar(verdicts):
    """What a host's clock says would decide where the time went."""
    changes = [verdict.skew_change for verdict in verdicts if verdict.skew_change is not None]
    assert len(changes) == 2
    assert max(changes) <= 0.001


def test_shares_of_several_faults_sum_to_what_they_cost_together(verdicts):
    """The waterfall of a job with several faults would not close."""
    errors = [verdict.sum_error for verdict in verdicts if verdict.sum_error is not None]
    assert len(errors) == 6
    assert max(errors) <= 0.01


def test_too_few_microbatches_are_a_bubble_and_blame_nobody(verdicts):
    """A setting would be looked for on the machines."""
    (few,) = [verdict for verdict in verdicts if verdict.case.is_bubble]
    assert (few.wanted, few.found, few.false_suspects) == (BUBBLE, BUBBLE, 0)


def test_true_shares_are_those_of_the_definition(verdicts):
    """The truth that the shares are judged by would itself not add up."""
    (case,) = [v.case for v in verdicts if v.case.row == "slow rank and another"]
    truth = truth_of(case.job)
    shares, gains = true_shares(case.job, truth), true_gains(case.job, truth)
    together = sum(shares.values())
    assert shares.keys() == gains.keys()
    assert all(share <= together for share in shares.values())
    # With two faults a share is halfway between what it costs alone and besides the other.
    for fault, other in zip(shares, reversed(shares), strict=True):
        assert shares[fault] == pytest.approx((gains[fault] + together - gains[other]) / 2)


def test_the_table_names_its_misses(verdicts):
    """The suite would look better than it is."""
    text = report(verdicts)
    assert text.count("\n| ") >= len(ROWS)
    assert text.endswith("Misses:")
    assert macro_f1(verdicts) == 1.0


def test_the_page_shows_every_row_and_the_seed(project_dir):
    """The published table would be that of another suite."""
    page = (project_dir / "docs" / "truth.md").read_text(encoding="utf-8")
    rows = [*ROWS, *{case.row for case in live_cases()}]
    assert not [row for row in rows if f"| {row} |" not in page]
    assert f"seed {SEED}" in page.lower()


def test_intervals_are_those_of_the_paper():
    """Rates of few cases would look certain."""
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)

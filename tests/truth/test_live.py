"""One short job of the live suite; ``make truth`` runs all of it and prints the table."""

from dataclasses import replace

import pytest
from tests.truth.live.cases import NONE, TENSOR, WINDOW, cases, slow_link
from tests.truth.live.judge import LiveVerdict, judge
from tests.truth.live.paired import Step, paired_cost
from tests.truth.live.table import report

MAX_COST_ERROR = 0.30
MAX_STANDARD_ERRORS = 3.0
"""As for the demo: other work on the machine hits the two halves of the steps differently."""


@pytest.fixture(scope="module")
def verdict(tmp_path_factory) -> LiveVerdict:
    """Return the verdict on a slow data-parallel group, beside one that is not."""
    case = replace(slow_link(TENSOR, "dp", 1, 60), steps=1 + 8 * WINDOW)
    return judge(case, tmp_path_factory.mktemp("live"))


@pytest.mark.slow
@pytest.mark.distributed
def test_a_slow_group_of_a_live_job_is_found_and_costed(verdict):
    """A link that is slow now and then would go unseen in real captures."""
    assert (verdict.found, verdict.is_located, verdict.false_suspects) == ("slow_link", True, 0)
    assert verdict.true_frac is not None
    allowed = max(
        MAX_COST_ERROR * verdict.true_frac, MAX_STANDARD_ERRORS * verdict.error_frac, 0.01
    )
    assert verdict.bar_error <= allowed


@pytest.mark.slow
@pytest.mark.distributed
def test_the_live_table_has_its_figures(verdict):
    """The suite would print nothing that could be held against it."""
    text = report([verdict], ["slow pp group: refused"])
    assert f"| {verdict.case.row} | 1 | {int(verdict.is_hit)} |" in text
    assert "slow pp group: refused" in text
    assert "± " in text


def test_costs_are_those_of_settled_steps():
    """What a fault costs would be shared with the healthy step after it."""
    on = [Step(number=1, length_ns=130, is_active=True, is_settled=True)] * 4
    off = [Step(number=2, length_ns=100, is_active=False, is_settled=True)] * 4
    mixed = [Step(number=3, length_ns=900, is_active=False, is_settled=False)] * 9
    assert paired_cost([*on, *off, *mixed]).cost_ns == 30


def test_live_jobs_have_names_of_their_own():
    """One run would be recorded over another."""
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    assert sum(case.kind == NONE for case in cases()) == 4

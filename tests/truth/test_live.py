"""Short jobs of the live suite; ``make truth`` runs all of it and prints the table."""

from dataclasses import replace

import pytest
from tests.truth.live.cases import NONE, WINDOW, Way
from tests.truth.live.judge import LiveVerdict, judge
from tests.truth.live.paired import Step, paired_cost
from tests.truth.live.suite import TENSOR, broken, cases, slow_link
from tests.truth.live.table import report

from meshscope.reference_trainer.config.fault_plan import parse_fault
from meshscope.reference_trainer.config.fault_rules import RULES

MAX_COST_ERROR = 0.30
MAX_STANDARD_ERRORS = 3.0
"""As for the demo: other work on the machine hits the two halves of the steps differently."""


@pytest.fixture(scope="module")
def verdict(tmp_path_factory) -> LiveVerdict:
    """Return the verdict on a slow data-parallel group, beside one that is not."""
    case = replace(slow_link(TENSOR, "dp", 1, 60), steps=1 + 8 * WINDOW)
    return judge(case, tmp_path_factory.mktemp("live"))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.distributed
def test_a_slow_group_of_a_live_job_is_found_and_costed(verdict):
    """Fails if a link that is slow now and then goes unseen in real captures."""
    # Other work on the machine can hold up a rank in earnest: suspects are counted in the table.
    assert (verdict.found, verdict.is_located) == ("slow_link", True)
    assert verdict.true_frac is not None
    allowed = max(
        MAX_COST_ERROR * verdict.true_frac, MAX_STANDARD_ERRORS * verdict.error_frac, 0.01
    )
    assert verdict.bar_error <= allowed


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.distributed
def test_the_live_table_has_its_figures(verdict):
    """Fails if the suite prints nothing that could be held against it."""
    text = report([verdict], ["slow cp group: refused"])
    assert f"| {verdict.case.row} | 1 | {int(verdict.is_hit)} |" in text
    assert "slow cp group: refused" in text
    assert "± " in text


@pytest.mark.distributed
@pytest.mark.parametrize("fault", ["crash,mode=kill", pytest.param("hang", marks=pytest.mark.slow)])
def test_the_rank_that_ended_a_live_job_is_named(fault, tmp_path):
    """Fails if a crash is taken for a hang, a hang for a crash, or a victim for the culprit."""
    verdict = judge(broken(fault), tmp_path)
    assert (verdict.found, verdict.place, verdict.is_hit) == (
        fault.split(",")[0],
        "ranks [1]",
        True,
    )


def test_costs_are_those_of_settled_steps():
    """Fails if what a fault costs is shared with the healthy step after it."""
    on = [Step(number=1, length_ns=130, is_active=True, is_settled=True)] * 4
    off = [Step(number=2, length_ns=100, is_active=False, is_settled=True)] * 4
    mixed = [Step(number=3, length_ns=900, is_active=False, is_settled=False)] * 9
    assert paired_cost([*on, *off, *mixed]).cost_ns == 30


def test_the_cost_beside_another_fault_is_what_is_not_hidden():
    """Fails if a fault that another one hides is judged by what it would cost alone."""
    lengths = {(False, False): 100, (True, False): 130, (False, True): 150, (True, True): 150}
    steps = [
        Step(number=n, length_ns=ns, is_active=mine, is_settled=True, beside=(other,))
        for (mine, other), ns in lengths.items()
        for n in range(4 if other else 2)
    ]
    assert paired_cost(steps).cost_ns == 10  # 30 in two of six steps with it, nothing in four


def test_live_jobs_have_names_of_their_own():
    """Fails if one run would be recorded over another."""
    names = [case.name for case in cases()]
    names += [case.spread_evenly().name for case in cases() if case.way is Way.AGAINST]
    assert len(set(names)) == len(names)
    shared = [case.run for case in cases() if case.part is not None]
    assert not set(shared) & set(names)
    assert all(
        shared.count(case.run) == len(case.faults) for case in cases() if case.part is not None
    )
    assert sum(case.kinds == (NONE,) and not case.faults for case in cases()) == 4


def test_every_fault_of_the_trainer_is_in_a_live_job():
    """Fails if the trainer has a fault that no diagnosis was held against."""
    faults = [parse_fault(request) for case in cases() for request in case.requests]
    assert {fault.kind for fault in faults} == RULES.keys()
    assert {fault.way for fault in faults if fault.kind == "slow_rank"} == {
        "sleep",
        "compute",
        "duty",
    }
    axes = {fault.axis for fault in faults if fault.kind == "slow_link"}
    assert axes == {"tp", "pp", "dp", "cp", "ep"}

"""The detection of slow ranks on seeded jobs; ``python -m bench.detection`` runs the whole table."""

import pytest
from tests.detection_cases import PAST, Family, judge, measured_cv, offline, online

CASES = 6
EVEN = {"layout": "pp4 dp4", "work_cv": 0.0}
UNEVEN = {"layout": "pp4 dp4", "work_cv": 0.35}
PLACES = [EVEN, UNEVEN, {"layout": "dp8", "work_cv": 0.0}, {"layout": "pp4", "work_cv": 0.35}]


@pytest.mark.parametrize(
    "place", PLACES, ids=lambda place: f"{place['layout']}, {place['work_cv']}"
)
@pytest.mark.parametrize("steps", [5, 20])
def test_slow_ranks_are_found_in_time(place, steps):
    """A slow rank would cost its job hours before anyone is told.

    5 % in 5 steps; in 20 steps 2 %, or 3 % where sequences make the work uneven by a third.
    """
    factor = 1.05 if steps == 5 else 1.03 if place["work_cv"] else 1.02
    family = Family(name="", factors=(factor,), start=PAST, steps=steps, **place)
    tally = judge(family, CASES, offline)
    assert tally.hits >= CASES - 1, tally.misses
    assert tally.wrong <= 1, tally.blames


def test_the_running_job_is_judged_as_well_as_the_recorded_one():
    """An agent would trigger too late what the post-mortem sees at once."""
    family = Family(name="", factors=(1.05,), start=PAST, steps=5, **UNEVEN)
    tally = judge(family, CASES, online)
    assert tally.hits >= CASES - 1, tally.misses


def test_a_rank_behind_a_slower_one_is_found():
    """The second repair would be needed after the first one."""
    family = Family(name="", factors=(1.05,), start=PAST, steps=10, bigger=1.5, **EVEN)
    tally = judge(family, CASES, offline)
    assert tally.hits >= CASES - 1, tally.misses
    assert tally.tops == CASES


@pytest.mark.parametrize(
    "place", PLACES, ids=lambda place: f"{place['layout']}, {place['work_cv']}"
)
def test_healthy_jobs_are_left_alone(place):
    """People would stop reading the reports."""
    family = Family(name="", factors=(), start=0, steps=30, **place)
    tally = judge(family, CASES, offline)
    assert tally.wrong <= 1, tally.blames


def test_the_nuisances_are_those_of_a_real_job():
    """The figures would be from jobs that are quieter than any machine."""
    job, _ = Family(name="", factors=(), start=0, steps=40, **EVEN).job(0)
    assert 0.02 <= measured_cv(job) <= 0.035

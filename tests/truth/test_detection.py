"""The detection of slow ranks on seeded jobs; ``python -m bench.detection`` runs the whole table."""

import pytest
from tests.detection_cases import (
    LONG_PAST,
    PAST,
    WORK_CV,
    Family,
    captured,
    clean_job,
    judge,
    measured_cv,
    offline,
    online,
)

CASES = 6
EVEN = {"layout": "pp4 dp4", "work_cv": 0.0}
UNEVEN = {"layout": "pp4 dp4", "work_cv": WORK_CV}
PLACES = [
    EVEN,
    UNEVEN,
    {"layout": "dp8", "work_cv": WORK_CV, "tokens": True},
    {"layout": "pp4 dp2", "work_cv": WORK_CV},
    {"layout": "pp4", "work_cv": WORK_CV},
    {"layout": "tp2 pp2 dp4", "work_cv": WORK_CV},
]


def named(place):
    """Return what a place is called in the report."""
    return f"{place['layout']}, {place['work_cv']}"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("place", PLACES, ids=named)
@pytest.mark.parametrize(("percent", "past", "steps"), [(5, PAST, 5), (2, LONG_PAST, 20)])
def test_slow_ranks_are_found_in_time(place, percent, past, steps):
    """A slow rank would cost its job hours before anyone is told."""
    family = Family(name="", factors=(1 + percent / 100,), start=past, steps=steps, **place)
    tally = judge(family, CASES, offline)
    assert tally.hits >= CASES - 1, tally.misses
    assert not tally.wrong, tally.blames


@pytest.mark.parametrize("place", [UNEVEN, PLACES[3]], ids=named)
def test_the_running_job_is_judged_as_well_as_the_recorded_one(place):
    """An agent would trigger too late what the post-mortem sees at once."""
    family = Family(name="", factors=(1.05,), start=PAST, steps=5, **place)
    tally = judge(family, CASES, online)
    assert tally.hits >= CASES - 1, tally.misses
    assert not tally.wrong, tally.blames


def test_two_replicas_of_two_stages_show_what_physics_lets_them():
    """Fails when less is found than physics allows where each of two stages alone tells the other's work."""
    place = {"layout": "pp2 dp2", "work_cv": WORK_CV}
    family = Family(name="", factors=(1.05,), start=PAST, steps=10, **place)
    assert judge(family, CASES, offline).hits >= CASES - 1
    known = Family(name="", factors=(1.02,), start=LONG_PAST, steps=20, tokens=True, **place)
    assert judge(known, CASES, offline).hits >= CASES - 1


@pytest.mark.sampled(keep=("dp2",))
@pytest.mark.parametrize("layout", ["dp2", "dp8"])
def test_lengths_that_a_capture_tells_let_a_slow_replica_be_found(layout):
    """Fails when what the training tells of its microbatches gets lost on the way to the detection."""
    found = [captured(layout, number, reported=True) for number in range(CASES)]
    assert sum(suspects[:1] == [slow] for suspects, slow in found) >= CASES - 1
    assert all(set(suspects) <= {slow} for suspects, slow in found)
    blind = [captured(layout, number, reported=False) for number in range(CASES)]
    assert sum(slow in suspects for suspects, slow in blind) <= 1


@pytest.mark.parametrize("place", [EVEN, UNEVEN], ids=named)
def test_a_rank_behind_a_slower_one_is_found(place):
    """The second repair would be needed after the first one."""
    family = Family(name="", factors=(1.05,), start=PAST, steps=10, bigger=1.5, **place)
    tally = judge(family, CASES, offline)
    assert tally.hits >= CASES - 1, tally.misses
    assert tally.tops == CASES


def test_healthy_jobs_are_left_alone():
    """People would stop reading the reports."""
    blamed = [job.seed for job in map(clean_job, range(60)) if offline(job)]
    assert not blamed
    running = [clean_job(number, steps=60) for number in range(6)]
    assert not [job.seed for job in running if online(job)]


def test_the_nuisances_are_those_of_a_real_job():
    """The figures would be from jobs that are quieter than any machine."""
    job, _ = Family(name="", factors=(), start=0, steps=40, **EVEN).job(0)
    assert 0.02 <= measured_cv(job) <= 0.035

"""The price of a slow rank from summaries, against the simulation without it."""

import pytest

from meshscope.analyze.scale.executors import InThisProcess
from meshscope.analyze.scale.slow_ranks import first_answer
from meshscope.analyze.scale.store import write_summaries
from meshscope.analyze.synthetic import (
    SyntheticJob,
    make_simulation,
    parse_fault,
    record,
    truth_of,
    write_run,
)
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

ALWAYS = "slow_rank:rank=9,factor=1.2"


def priced(folder, layout, *faults, **settings):
    """Return each slow rank's price, the true one of the first fault and the mean step, ns."""
    job = SyntheticJob(
        layout=ParallelLayout(**layout),
        faults=tuple(map(parse_fault, faults)),
        **{"steps": 12, "jitter_cv": 0.02, "schedule": ScheduleKind.ONE_F_ONE_B} | settings,
    )
    truth = truth_of(job)
    run = write_run(job, record(make_simulation(job)), truth, folder)
    answer = first_answer(write_summaries(run, InThisProcess(), lambda _: None))
    prices = {one.verdict.rank: one.price.return_ns for one in answer.slow}
    return prices, truth.faults[0].removal_gain_ns, answer.step_ns


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ({"pp": 4, "dp": 32}, {}),
        ({"pp": 4, "dp": 32}, {"jitter_cv": 0.04}),
        ({"tp": 2, "pp": 4, "dp": 8}, {"wire_cv": 0.05}),
        ({"pp": 2, "dp": 16}, {"overlap_dp": True, "dp_buckets": 4}),
        ({"pp": 4, "dp": 16}, {"schedule": ScheduleKind.ZB_H1}),
        ({"pp": 4, "dp": 16}, {"layers": (3, 2, 2, 2)}),
        ({"dp": 32}, {"schedule": ScheduleKind.NONE}),
    ],
    ids=["deep", "noisy", "wide", "overlapped", "zero-bubble", "uneven", "flat"],
)
def test_a_rank_that_is_always_slow_costs_what_its_repair_returns(layout, settings, seed, tmp_path):
    """Fails when the first answer promises more than the slowest of many healthy replicas leaves."""
    prices, true_ns, step_ns = priced(tmp_path, layout, ALWAYS, seed=seed, **settings)
    assert list(prices) == [9]
    assert abs(prices[9] - true_ns) < 0.003 * step_ns
    assert abs(prices[9] - true_ns) < 0.04 * true_ns


def test_a_rank_behind_a_slower_one_returns_nothing(tmp_path):
    """Fails when repairing the lesser of two slow ranks is promised to help."""
    lesser = "slow_rank:rank=40,factor=1.1"
    prices, true_ns, step_ns = priced(tmp_path, {"pp": 4, "dp": 16}, lesser, ALWAYS)
    assert set(prices) == {9, 40}
    assert abs(prices[40] - true_ns) < 0.002 * step_ns


def test_healthy_steps_say_what_one_replica_returns(tmp_path):
    """Fails when a run without replicas has no price, or one of replay alone."""
    late = f"{ALWAYS.replace('rank=9', 'rank=3')},first_step=12"
    prices, true_ns, step_ns = priced(tmp_path, {"tp": 2, "pp": 2}, late, steps=24)
    assert abs(prices[3] - true_ns) < 0.01 * step_ns

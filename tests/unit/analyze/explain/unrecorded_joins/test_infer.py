"""Joins that nobody recorded are found, and nothing is found where there are none."""

import numpy as np
import pytest
from tests.synthetic import MS, Job, capture_of
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(dp=4)
STEPS, SLOW = 16, 2
WORLD = ("dp-0", (0, 1, 2, 3))
WIRE = 200_000


def programs(*, joins, slowdown=1.0, gap=None, seed=0):
    """Return programs of replicas that compute, join unseen, go on, and sum gradients."""
    random = np.random.default_rng(seed)
    work = random.uniform(10, 13, (STEPS, 4)) * MS
    after = random.uniform(2, 2.4, (STEPS, 4)) * MS if gap is None else gap(random) * MS
    work[:, SLOW] *= slowdown
    return [
        [
            op
            for step in range(STEPS)
            for op in (
                ("work", int(work[step, rank]), step, "forward", 0, 0),
                *([("hidden", WORLD, WIRE)] if joins else []),
                ("idle", int(after[step, rank])),
                ("work", int(2 * work[step, rank]), step, "backward", 0, 0),
                ("collective", step, WORLD, "dp", "all_reduce", 1 << 20, WIRE),
                ("work", 2 * MS, step, "optimizer", 0, -1),
                ("end", step, 4096),
            )
        ]
        for rank in range(4)
    ]


def pair(*, joins, seed, gap_ms=2.0, steps=14):
    """Return the capture of two replicas, one of them slower by the same in each step."""
    random = np.random.default_rng(seed)
    both = ("dp-0", (0, 1))
    forward = np.array([20, 30]) * random.normal(1, 0.01, (steps, 2)) * MS
    after = gap_ms * random.normal(1, 0.03, (steps, 2)) * MS
    members = [
        [
            op
            for step in range(steps)
            for op in (
                ("work", int(forward[step, rank]), step, "forward", 0, 0),
                *([("hidden", both, WIRE)] if joins else []),
                ("idle", int(after[step, rank])),
                ("work", 40 * MS, step, "backward", 0, 0),
                ("collective", step, both, "dp", "all_reduce", 1 << 20, WIRE),
                ("end", step, 4096),
            )
        ]
        for rank in range(2)
    ]
    return capture_of(Job(layout=ParallelLayout(dp=2), microbatches=1, steps=steps), members)


def recorded(**job):
    """Return the capture of such a job."""
    return capture_of(Job(layout=LAYOUT, microbatches=1, steps=STEPS), programs(**job))


def inferred(trace):
    """Return the joins of a capture: the ranks of each group."""
    frame = measure(trace).events.frame
    rows = frame[frame["is_inferred"]]
    return {name: sorted(set(own)) for name, own in rows.groupby("group_id", observed=True)["rank"]}


def test_a_join_that_nobody_recorded_is_found():
    """Waiting for a slow rank would be work of those that wait."""
    found = inferred(recorded(joins=True, slowdown=1.5))
    assert list(found.values()) == [[0, 1, 2, 3]]


def test_a_slow_rank_behind_an_unseen_join_returns_what_the_paired_job_says():
    """Most of what it costs would be frozen into the gaps of its peers."""
    slow = diagnose(recorded(joins=True, slowdown=1.5))
    healthy = diagnose(recorded(joins=True))
    cause = next(own for own in slow.causes if own.kind == "straggler_rank")
    assert cause.where == {"rank": SLOW}
    true_gain = 1 - healthy.step_time_ns / slow.step_time_ns
    assert true_gain > 0.2
    assert cause.removal_gain_frac == pytest.approx(true_gain, abs=0.015)
    assert [
        limit for limit in texts(slow.limits) if "wait for one another before backward" in limit
    ]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_no_join_is_found_where_there_is_none(seed, slowdown):
    """Healthy gaps would be called waiting, and a rank be blamed for them."""
    uneven = [
        lambda random: random.uniform(2, 2.4, (STEPS, 4)),
        lambda random: random.lognormal(0.5, 1.0, (STEPS, 4)),
        lambda random: 6 + random.pareto(2.5, (STEPS, 4)),
    ]
    trace = recorded(joins=False, slowdown=slowdown, gap=uneven[seed % 3], seed=seed)
    assert inferred(trace) == {}


@pytest.mark.parametrize("seed", range(2, 7))
def test_a_join_of_two_is_found_in_a_short_capture(seed):
    """What a steadily slow rank costs would be frozen into the work of its only peer."""
    assert list(inferred(pair(joins=True, seed=seed)).values()) == [[0, 1]]


@pytest.mark.parametrize("gap_ms", [2.0, 8.0, 15.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_pair_that_joins_nothing_has_no_join(seed, gap_ms):
    """A steady gap beside a steady lead would be called waiting."""
    assert inferred(pair(joins=False, seed=seed, gap_ms=gap_ms)) == {}


def test_a_slow_rank_whose_peer_idles_as_long_is_named_without_a_price():
    """In a capture too short to show the join, a repair of half of the step would be said to return nothing."""
    result = diagnose(pair(joins=True, seed=0, steps=6))
    assert result.causes == ()
    assert any("idle as long, unrecorded" in limit for limit in texts(result.limits))
    (slow,) = [own for own in result.findings if own.kind == "straggler_rank"]
    assert slow.where["rank"] == 1
    assert slow.removal_gain_frac is None
    assert "16." in str(slow.claim)


def test_a_peer_that_works_as_long_elsewhere_is_not_called_idle():
    """Fails when a rank with slower passes and less other work costs a run all its causes."""
    both = ("dp-0", (0, 1))
    members = [
        [
            op
            for step in range(12)
            for op in (
                ("work", (20 + 10 * rank) * MS, step, "forward", 0, 0),
                ("work", 40 * MS, step, "backward", 0, 0),
                ("collective", step, both, "dp", "all_reduce", 1 << 20, WIRE),
                ("work", (20 - 10 * rank) * MS, step, "optimizer", 0, -1),
                ("end", step, 4096),
            )
        ]
        for rank in range(2)
    ]
    job = Job(layout=ParallelLayout(dp=2), microbatches=1, steps=12)
    result = diagnose(capture_of(job, members))
    assert not any("idle as long" in limit for limit in texts(result.limits))

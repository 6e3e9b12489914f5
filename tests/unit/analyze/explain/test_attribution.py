"""Causes by replay, against two simulated runs that differ in one cause."""

import pytest
from tests.messages import of_code, values_of
from tests.synthetic import MS, Job, capture, uniform
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout

EVEN = uniform(10 * MS, 20 * MS)


def causes_of(job, work):
    """Return the causes of a job by kind and place."""
    result = diagnose(capture(job, work))
    return {
        (cause.kind, *(str(value) for value in cause.where.values())): cause
        for cause in result.causes
    }, result


def test_a_healthy_job_has_no_cause():
    """Rounding would be blamed on somebody."""
    causes, result = causes_of(Job(layout=ParallelLayout(tp=2, pp=2), steps=3), EVEN)
    assert all(abs(cause.share_frac) < 1e-9 for cause in causes.values())
    assert not any(kind == "straggler_rank" for kind, *_ in causes)
    assert {str(f.kind) for f in result.findings} <= {"pipeline_bubble", "exposed_communication"}


def test_direct_part_of_a_slow_rank_is_its_own_share_of_the_mean():
    """The slow rank's own time would be billed to all ranks."""
    job = Job(layout=ParallelLayout(dp=4), steps=3)
    causes, result = causes_of(
        job, lambda kind, rank, step, microbatch: (30 if rank == 2 else 20) * MS
    )
    cause = causes["straggler_rank", "2"]
    extra = 10 * MS * 2 * job.microbatches
    assert cause.share_frac * result.step_time_ns == pytest.approx(extra)
    assert cause.direct_ns == pytest.approx(extra / 4)
    assert cause.induced_wait_ns == pytest.approx(extra * 3 / 4)


def test_two_slow_ranks_share_what_only_both_can_return():
    """The sum of the causes would exceed the loss, or a repair would promise too much."""
    causes, result = causes_of(
        Job(layout=ParallelLayout(dp=4), steps=5),
        lambda kind, rank, step, microbatch: {1: 30, 2: 25}.get(rank, 20) * MS,
    )
    first, second = causes["straggler_rank", "1"], causes["straggler_rank", "2"]
    step = result.step_time_ns
    assert first.removal_gain_frac * step == pytest.approx(8 * 5 * MS)
    assert second.removal_gain_frac * step == pytest.approx(0, abs=1)
    assert (first.share_frac + second.share_frac) * step == pytest.approx(8 * 10 * MS)
    assert second.share_frac * step == pytest.approx(8 * 5 * MS / 2)


def test_jitter_is_a_cause_of_its_own():
    """Noise would be hidden, or blamed on ranks."""
    causes, _ = causes_of(
        Job(layout=ParallelLayout(dp=4), steps=6),
        lambda kind, rank, step, microbatch: 20 * MS + ((step + rank) % 4) * MS,
    )
    assert causes[("jitter",)].share_frac > 0.02
    assert not any(kind == "straggler_rank" for kind, *_ in causes)


def test_a_rank_without_peers_is_said_to_be_undecidable():
    """A slow rank and a heavy stage would be distinguished by a guess."""
    result = diagnose(
        capture(
            Job(layout=ParallelLayout(pp=4), steps=3),
            lambda kind, rank, step, microbatch: (30 if rank == 3 else 20) * MS,
        )
    )
    assert not any(f.kind == "straggler_rank" for f in result.findings)
    assert any(f.kind == "stage_imbalance" and f.where["stage"] == 3 for f in result.findings)
    assert any("peer" in limit for limit in texts(result.limits))


MANY = {1: 1.3, 3: 1.28, 5: 1.26, 8: 1.24, 10: 1.22, 12: 1.2}
"""Slow ranks of two stages of eight, more than are causes of their own."""


def many_slow(*left):
    """Return work in which these ranks are slow."""
    return lambda kind, rank, step, microbatch: int(
        EVEN(kind, rank, step, microbatch) * (MANY[rank] if rank in left else 1)
    )


@pytest.fixture(scope="module")
def many():
    """Return the causes and the diagnosis of a job with many slow ranks."""
    return causes_of(Job(layout=ParallelLayout(pp=2, dp=8), steps=3), many_slow(*MANY))


def test_slow_ranks_beyond_the_cap_are_one_cause(many):
    """Fails when the fifth slow rank of a job is reported as jitter."""
    causes, result = many
    rest = causes["other_slow_ranks", "[10, 12]"]
    healthy = diagnose(
        capture(Job(layout=ParallelLayout(pp=2, dp=8), steps=3), many_slow(*list(MANY)[:4]))
    )
    returned = result.step_time_ns - healthy.step_time_ns
    assert rest.removal_gain_frac * result.step_time_ns == pytest.approx(returned, abs=MS)
    assert rest.share_frac > 0.01
    assert causes[("jitter",)].share_frac == pytest.approx(0, abs=1e-9)


def test_the_shares_of_many_slow_ranks_sum_to_the_loss(many):
    """Fails when time of ranks that have no name is lost, or counted twice."""
    _, result = many
    clean = diagnose(capture(Job(layout=ParallelLayout(pp=2, dp=8), steps=3), EVEN))
    loss = sum(cause.share_frac for cause in result.causes) * result.step_time_ns
    assert loss == pytest.approx(result.step_time_ns - clean.step_time_ns, rel=1e-6)


def test_slow_ranks_beyond_the_cap_have_a_finding(many):
    """Fails when nobody is reported of a slow rank because four others are slower."""
    _, result = many
    (rest,) = (found for found in result.findings if "ranks" in found.where)
    assert (rest.kind, rest.where) == ("straggler_rank", {"ranks": [10, 12]})
    members = values_of(rest.evidence, "straggler_rank.slower")["members"]
    assert list(map(str, members)) == ["rank 10 by 21.6 %", "rank 12 by 19.7 %"]
    # Of either stage others are slower: no single one hides them, so none may be named as if it did.
    assert of_code(rest.evidence, "cause.hidden_by_several")
    assert rest.returns_frac < 0.01
    named = {found.where["rank"] for found in result.findings if "rank" in found.where}
    assert named | {10, 12} == set(MANY)


def test_one_rank_more_than_the_cap_needs_no_other_name():
    """Fails when a rest of one rank loses its place."""
    left = list(MANY)[:5]
    causes, _ = causes_of(Job(layout=ParallelLayout(pp=2, dp=8), steps=3), many_slow(*left))
    assert {int(key[1]) for key in causes if key[0] == "straggler_rank"} == set(left)
    assert not any(kind == "other_slow_ranks" for kind, *_ in causes)

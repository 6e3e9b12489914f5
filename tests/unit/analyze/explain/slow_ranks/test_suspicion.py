"""What the detection tells the attribution, on captures of simulated jobs."""

import re

import numpy as np
import pandas as pd
import pytest
from tests.messages import of_code, values_of
from tests.slow_ranks import Fault, Nuisance, SlowRankJob
from tests.synthetic import MS, Job, capture
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.slow_ranks import detect
from meshscope.analyze.explain.slow_ranks.durations import durations_of
from meshscope.analyze.explain.slow_ranks.suspicion import slow_together
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.wording.message import Message
from meshscope.probe.schema.layout import ParallelLayout

GRID = ParallelLayout(pp=4, dp=2)
CUBE = ParallelLayout(tp=2, pp=2, dp=2)


def uneven(factors, since=0, cv=0.4, seed=3):
    """Return work whose microbatches differ by replica, step and microbatch."""

    def work(kind, rank, step, microbatch):
        replica = GRID.coordinates(rank)["dp"]
        drawn = np.random.default_rng([seed, replica, step, microbatch]).lognormal(0, cv)
        jitter = 1 + 0.01 * np.random.default_rng([seed, rank, step, microbatch]).standard_normal()
        factor = factors.get(rank, 1.0) if step >= since else 1.0
        return int((10 if kind == "forward" else 20) * MS * drawn * jitter * factor)

    return work


def stragglers(result):
    """Return the ranks that are called stragglers."""
    return [f.where["rank"] for f in result.findings if f.kind == "straggler_rank"]


def test_waiting_inside_a_layer_is_not_own_time():
    """The tensor-parallel peer of a slow rank would look as slow as it is."""

    def work(kind, rank, step, microbatch):
        return (30 if rank == 5 else 20) * MS

    frame = durations_of(capture(Job(layout=CUBE, steps=4), work))
    by_rank = frame.groupby("rank")["dur_ns"].mean() / MS
    assert by_rank[5] == pytest.approx(30)
    assert by_rank.drop(5).to_numpy() == pytest.approx([20] * 7)
    assert [verdict.rank for verdict in detect(frame, CUBE).suspects] == [5]


def test_a_replica_with_more_work_is_not_blamed():
    """Ranks with long sequences would be called stragglers."""
    work = uneven({})

    def heavier(kind, rank, step, microbatch):
        more = 1.3 if GRID.coordinates(rank)["dp"] == 1 else 1.0
        return int(more * work(kind, rank, step, microbatch))

    result = diagnose(capture(Job(layout=GRID, steps=8, microbatches=8), heavier))
    assert not stragglers(result)


def test_a_slow_rank_under_uneven_work_is_named_with_its_steps():
    """The slow rank would drown in the sequences, or be named without since when."""
    trace = capture(Job(layout=GRID, steps=34, microbatches=6), uneven({5: 1.4}, since=26))
    result = diagnose(trace)
    assert stragglers(result) == [5]
    finding = next(f for f in result.findings if f.kind == "straggler_rank")
    first, last = finding.where["steps"]
    assert abs(first - 26) <= 1
    assert last == 33
    assert of_code(finding.evidence, "straggler_rank.since")


@pytest.mark.parametrize("cv", [0.0, 0.03, 0.2], ids=["even", "nearly even", "uneven"])
def test_a_rank_that_is_slow_on_and_off_costs_what_the_paired_job_tells(cv):
    """The price of blocked forwards would be spread over all steps and passes, and come out too low."""
    job = Job(layout=GRID, steps=24, microbatches=6)
    clean = uneven({}, cv=cv, seed=4)

    def blocked(kind, rank, step, microbatch):
        is_hit = rank == 5 and kind == "forward" and step // 4 % 2 == 0
        return clean(kind, rank, step, microbatch) + (12 * MS if is_hit else 0)

    result = diagnose(capture(job, blocked))
    cost_ns = result.step_time_ns - diagnose(capture(job, clean)).step_time_ns
    found = next(cause for cause in result.causes if cause.kind == "straggler_rank")
    assert found.where == {"rank": 5}
    assert found.removal_gain_frac * result.step_time_ns == pytest.approx(cost_ns, rel=0.1)


@pytest.mark.parametrize("cv", [0.2, 0.4])
def test_a_rank_that_is_slow_on_and_off_is_blamed_alone_under_uneven_work(cv):
    """The other replica would be blamed, whose ranks look slow beside what the slow one tells."""
    clean = uneven({}, cv=cv)

    def blocked(kind, rank, step, microbatch):
        is_hit = rank == 5 and kind == "forward" and step // 4 % 2 == 0
        return clean(kind, rank, step, microbatch) + (12 * MS if is_hit else 0)

    trace = capture(Job(layout=GRID, steps=24, microbatches=6), blocked)
    assert [verdict.rank for verdict in detect(trace).suspects] == [5]


def noisy(layout, slow, by=1.3):
    """Return even work with a jitter of 1 %, longer by a factor where ``slow(rank, step)``."""

    def work(kind, rank, step, microbatch):
        draw = np.random.default_rng([9, rank, step, microbatch, len(kind)]).standard_normal()
        factor = by if slow(rank, step) else 1.0
        return int((10 if kind == "forward" else 20) * MS * (1 + 0.01 * draw) * factor)

    return work


def straggler(result):
    """Return the only straggler."""
    (finding,) = [f for f in result.findings if f.kind == "straggler_rank"]
    return finding


REPLICAS = ParallelLayout(dp=4)


@pytest.mark.parametrize(
    ("slow", "by", "steps", "words"),
    [
        ({3, 4, 5, 6, 9, 10, 11, 12}, 1.3, [3, 12], "in steps 3-6 and 9-12"),
        (set(range(1, 20, 2)), 1.3, [1, 19], "in every 2nd step, 1 to 19"),
        (set(range(10, 20)), 1.3, [10, 19], "in steps 10-19"),
    ],
    ids=["on and off", "every other", "from one on"],
)
def test_a_finding_says_in_which_steps_a_rank_is_slow_and_how_slow_there(slow, by, steps, words):
    """Fails when steps are named in which the rank was healthy, or the slow-down is spread over them."""
    work = noisy(REPLICAS, lambda rank, step: rank == 3 and step in slow, by)
    finding = straggler(diagnose(capture(Job(layout=REPLICAS, steps=20), work)))
    assert finding.where["steps"] == steps
    claimed = re.fullmatch(r"Rank 3 is ([\d.]+) % slower than its 3 peers (.*)", str(finding.claim))
    assert claimed is not None
    assert float(claimed[1]) / 100 == pytest.approx(by - 1, abs=0.02)
    assert claimed[2] == words
    low, high = (
        values_of(finding.evidence, "straggler_rank.interval")[end] for end in ("low", "high")
    )
    assert low <= finding.claim.values["slower"] <= high
    since = {"straggler_rank.since", "straggler_rank.now_and_then"}
    assert since & {fact.code for fact in finding.evidence if isinstance(fact, Message)}


def test_a_slow_rank_without_peers_is_as_slow_in_the_claim_as_in_the_evidence():
    """Fails when the claim tells the mean of all steps, and of 0 peers."""
    layout = ParallelLayout(pp=4)
    work = noisy(layout, lambda rank, step: rank == 2 and step >= 30)
    finding = straggler(diagnose(capture(Job(layout=layout, steps=40), work)))
    assert finding.claim.values["slower"] == pytest.approx(0.3, abs=0.01)
    assert str(finding.claim).endswith("% slower than expected in steps 30-39")
    interval = values_of(finding.evidence, "straggler_rank.interval")
    assert interval["low"] <= finding.claim.values["slower"] <= interval["high"]
    assert values_of(finding.evidence, "straggler_rank.since") == {"first": 30}


def test_a_capture_of_one_rank_is_judged_by_its_past():
    """Fails when a job of one rank that slows down has no finding."""
    layout = ParallelLayout(dp=1)
    work = noisy(layout, lambda rank, step: step >= 25)
    finding = straggler(diagnose(capture(Job(layout=layout, steps=40), work)))
    assert finding.where["steps"] == [25, 39]
    assert str(finding.claim).endswith("% slower in steps 25-39 than in its other steps")


def test_all_ranks_slower_together_are_reported():
    """Fails when the step of a whole job grows by a third and nothing says so."""
    work = noisy(REPLICAS, lambda rank, step: step >= 25)
    result = diagnose(capture(Job(layout=REPLICAS, steps=40), work))
    assert not stragglers(result)
    assert any(
        "All ranks take 30." in limit and "steps 25-39" in limit for limit in texts(result.limits)
    )


LAYOUT = ParallelLayout(pp=2, dp=2)


def seen(factor, tokens=None, ranks=range(4), steps=40, lengths=None, **nuisance):
    """Return the verdict on a job whose ranks are slow from step 25 on.

    ``tokens`` gives those of a step, ``lengths`` those of each of its microbatches, in one sequence.
    """
    faults = tuple(Fault(rank=rank, factor=factor, start=25) for rank in ranks)
    job = SlowRankJob(
        seed=51, layout=LAYOUT, steps=steps, faults=faults, nuisance=Nuisance(**nuisance)
    )
    frame = job.frame().assign(chunk=0)
    if lengths is not None:
        reported = frame["step"].map(lengths)
        frame = frame.assign(tokens=reported, sum_sq=reported**2)
    rows = [
        {"rank": rank, "step": step, "start_ns": 10 * step, "dur_ns": 10}
        | ({} if tokens is None else {"tokens": tokens(step)})
        for step in range(steps)
        for rank in range(4)
    ]
    return slow_together(frame, step_windows(trace_of(step=rows)), detect(frame, LAYOUT))


@pytest.mark.parametrize("factor", [1.15, 1.5])
def test_a_job_that_became_slower_is_reported(factor):
    """Fails when all ranks take half as long again and no word is said."""
    verdict = seen(factor)
    assert verdict.slow_steps == ((25, 39),)
    assert verdict.slowdown == pytest.approx(factor - 1, abs=0.02)


def test_more_tokens_explain_longer_steps():
    """Fails when a job with a growing batch is called slow."""
    assert seen(1.5, lambda step: 6000 if step >= 25 else 4000) is None
    assert seen(1.5, lambda step: 4000).slowdown == pytest.approx(0.5, abs=0.02)


def test_longer_sequences_explain_longer_steps():
    """Fails when what is known of each microbatch counts less than a step's tokens, which are constant here."""
    assert seen(1.5, lambda _: 4000, lengths=lambda step: 6000 if step >= 25 else 4000) is None
    verdict = seen(1.5, lambda _: 4000, lengths=lambda _: 4000)
    assert verdict.slowdown == pytest.approx(0.5, abs=0.02)


def test_one_slow_rank_is_not_the_job():
    """Fails when what one rank does is said of all of them."""
    assert seen(1.5, ranks=[2]) is None


@pytest.mark.parametrize("seed", range(5))
def test_drift_of_a_healthy_job_is_no_change(seed):
    """Fails when every warm room is reported."""
    assert seen(1.0, steps=60, common_drift=0.01, work_cv=0.3 * (seed % 2)) is None


def test_a_single_rank_is_left_to_its_own_verdict():
    """Fails when one fact is reported twice."""
    frame = pd.DataFrame(
        {"rank": 0, "step": np.arange(30), "kind": "forward", "chunk": 0, "microbatch": 0}
    ).assign(dur_ns=1000)
    rows = [{"step": step, "start_ns": 10 * step, "dur_ns": 10} for step in range(30)]
    assert slow_together(frame, step_windows(trace_of(step=rows)), detect(frame)) is None


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_are_late_in_turn_are_not_all_of_them(ranks):
    """Fails when every rank is said to take longer in steps in which each time one of them did."""
    layout, steps = ParallelLayout(dp=ranks), 40
    frame = SlowRankJob(seed=5, layout=layout, steps=steps).frame().assign(chunk=0)
    is_late = (frame["step"] >= 25) & (frame["step"] % ranks == frame["rank"])
    frame["dur_ns"] = frame["dur_ns"].where(~is_late, 3 * frame["dur_ns"])
    rows = [
        {"rank": rank, "step": step, "start_ns": 10 * step, "dur_ns": 10}
        for step in range(steps)
        for rank in range(ranks)
    ]
    found = slow_together(frame, step_windows(trace_of(step=rows)), detect(frame, layout))
    assert found is None

"""Ranks that stand still in a step or two."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture
from tests.unit.analyze.explain.slow_ranks.test_suspicion import noisy

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout

PAIR = ParallelLayout(dp=2)


def found(layout, slow, by=3.0):
    """Return the kinds of findings about rank 1, and the pauses, of a job of 20 steps."""
    work = noisy(layout, lambda rank, step: rank == 1 and step in slow, by)
    findings = diagnose(capture(Job(layout=layout, steps=20), work)).findings
    return [f.kind for f in findings if f.where.get("rank") == 1], [
        f for f in findings if f.kind == "host_stall"
    ]


@pytest.mark.parametrize(("slow", "words"), [({7}, "in step 7"), ({7, 13}, "in steps 7 and 13")])
def test_a_rank_that_stood_still_is_reported_with_its_steps(slow, words):
    """Fails when a tenth of the time is lost in one step and nothing says by whom."""
    kinds, (pause,) = found(PAIR, slow)
    assert kinds == ["host_stall"]
    assert str(pause.claim).startswith(f"Rank 1 pauses {words}:")
    assert pause.where["steps"] == [min(slow), max(slow)]
    share = 2.0 * len(slow) / (20 + 2 * len(slow))
    assert pause.cost_frac == pytest.approx(share, abs=0.02)


def test_what_all_ranks_lose_in_a_step_is_not_reported_as_lost_by_one():
    """Fails when a step that is long on all ranks is called usual for all but one."""
    alone = noisy(PAIR, lambda rank, step: rank == 1 and step == 7, 3.0)

    def work(kind, rank, step, microbatch):
        return alone(kind, rank, step, microbatch) * (2 if step == 7 else 1)

    findings = diagnose(capture(Job(layout=PAIR, steps=20), work)).findings
    (pause,) = (finding for finding in findings if finding.kind == "host_stall")
    assert pause.cost_frac == pytest.approx(4 / (19 + 6), abs=0.03)
    assert pause.claim.values["cost"] == pause.cost_frac
    assert pause.evidence[0].code == "pause.longest"


def test_a_slow_rank_does_not_pause_besides():
    """Fails when one cause is reported twice."""
    kinds, paused = found(ParallelLayout(dp=4), set(range(14, 20)))
    assert kinds == ["straggler_rank"]
    assert not paused


@pytest.mark.parametrize("slow", [{7, 8}, {19}])
def test_slow_steps_that_any_rank_may_have_by_chance_are_no_slow_rank(slow):
    """Fails when a rank is swapped for a step or two: exchanging the ranks by step finds as many."""
    kinds, (pause,) = found(ParallelLayout(dp=4), slow)
    assert kinds == ["host_stall"]
    assert pause.where["steps"] == [min(slow), max(slow)]


def uneven(*faults, microbatches, reported):
    """Return a job of two replicas in whose data, or besides, something is unequal."""
    return SyntheticJob(
        layout=PAIR,
        steps=24,
        microbatches=microbatches,
        jitter_cv=0.01,
        seed=5,
        tell_sequences=reported,
        faults=tuple(map(parse_fault, faults)),
    )


@pytest.mark.parametrize("reported", [False, True])
def test_a_step_of_long_sequences_is_no_pause(reported):
    """Fails when the host is blamed for a step in which its rank has more work."""
    job = uneven("sequence:cv=2.0,every=8", microbatches=2, reported=reported)
    kinds = {finding.kind for finding in diagnose(generate(job)[0]).findings}
    assert "sequence_imbalance" in kinds
    assert "host_stall" not in kinds


@pytest.mark.parametrize("reported", [False, True])
def test_a_slow_step_beside_unequal_sequences_is_no_matter_of_data(reported):
    """Fails when three times the work in all microbatches of a step passes for long sequences."""
    slow = "slow_rank:rank=1,factor=3,first_step=7,last_step=7"
    trace, truth = generate(uneven(slow, "sequence:cv=0.3", microbatches=8, reported=reported))
    (pause,) = (one for one in diagnose(trace).findings if one.kind == "host_stall")
    assert (pause.where["rank"], pause.where["steps"]) == (1, [7, 7])
    gain = truth.faults[0].removal_gain_ns / truth.step_time_ns
    assert pause.cost_frac == pytest.approx(gain, abs=0.015)


def test_a_short_delay_is_no_pause():
    """Fails when everything that is late once is told."""
    assert found(PAIR, {7}, by=1.2) == ([], [])


def test_a_rank_whose_waits_were_not_seen_does_not_pause():
    """Fails when a rank that waited for others, as in a join of uneven inputs, is told to have stood still."""
    work = noisy(PAIR, lambda rank, step: rank == 1 and step == 7, 3.0)
    trace = capture(Job(layout=PAIR, steps=20), work)
    collectives = trace.tables["collective"]
    for name in ("end_ns", "wait_start_ns"):
        place = collectives.schema.get_field_index(name)
        unseen = pa.nulls(len(collectives), collectives.schema.field(name).type)
        collectives = collectives.set_column(place, collectives.schema.field(name), unseen)
    unseen_ends = replace(trace, tables={**trace.tables, "collective": collectives})
    assert "host_stall" not in {finding.kind for finding in diagnose(unseen_ends).findings}


def test_a_step_in_which_the_peers_work_as_long_holds_no_pause():
    """Fails when a phase that all ranks have, as a rollout, is a pause of one beside a rank that is often slow."""

    def work(kind, rank, step, microbatch):
        in_phase = step % 6 == 0
        often_slow = rank == 1 and (step % 2 == 1 or step in (2, 8, 14))
        return (10 + 30 * in_phase + 15 * often_slow) * MS

    findings = diagnose(capture(Job(layout=PAIR, steps=20), work)).findings
    assert [f.where["rank"] for f in findings if f.kind == "straggler_rank"] == [1]
    assert "host_stall" not in {finding.kind for finding in findings}


@pytest.mark.parametrize("pause_ms", [300, 3000])
def test_a_pause_of_a_single_replica_is_no_matter_of_stages_or_of_the_schedule(pause_ms):
    """Fails when one pause becomes a heavy stage, jitter and bubble, none of which it is."""

    def job(paused_ms):
        def work(kind, rank, step, microbatch):
            hit = (kind, rank, step, microbatch) == ("forward", 2, 5, 3)
            return ((10 if kind == "forward" else 20) + paused_ms * hit) * MS

        layout = ParallelLayout(pp=4)
        return diagnose(capture(Job(layout=layout, microbatches=8, steps=12), work))

    paused, clean = job(pause_ms), job(0)
    lost = (paused.step_time_ns - clean.step_time_ns) / paused.step_time_ns
    assert paused.waiting.bubble_ns == pytest.approx(clean.waiting.bubble_ns, rel=1e-6)
    assert sum(cause.share_frac for cause in paused.causes) == pytest.approx(lost, abs=1e-4)
    assert {c.kind for c in paused.causes if abs(c.share_frac) > 1e-4} == {"jitter"}
    (pause,) = (f for f in paused.findings if f.kind == "host_stall")
    assert (pause.where["rank"], pause.where["steps"]) == (2, [5, 5])
    assert pause.cost_frac == pytest.approx(lost, abs=0.01)
    assert not {"jitter", "stage_imbalance"} & {f.kind for f in paused.findings}

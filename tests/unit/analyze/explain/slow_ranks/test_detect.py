"""Verdicts on recorded windows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.slow_ranks import Fault, Nuisance, SlowRankJob
from tests.texts import texts

from meshscope.analyze.explain.slow_ranks import Evidence, Persistence, detect
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.layout import ParallelLayout

GRID = ParallelLayout(pp=4, dp=4)
RECORDED = Path(__file__).parents[4] / "data"
"""Small recordings of jobs of ours."""


def window(*faults, layout=GRID, steps=40, seed=40, **nuisance):
    """Return the detection on one job."""
    job = SlowRankJob(
        seed=seed, layout=layout, steps=steps, faults=faults, nuisance=Nuisance(**nuisance)
    )
    return detect(job.frame(), layout)


def test_a_rank_that_stays_slow_is_persistent_from_its_first_bad_step():
    """What changed at that step would be looked for in the wrong place."""
    (verdict,) = window(Fault(rank=6, factor=1.05, start=24)).suspects
    assert (verdict.rank, verdict.persistence) == (6, Persistence.PERSISTENT)
    assert abs(verdict.first_bad_step - 24) <= 1
    assert verdict.last_bad_step == 39
    assert verdict.interval[0] - 0.005 < 0.05 < verdict.interval[1] + 0.005
    assert verdict.confidence > 0.99


def test_the_rank_that_stands_out_most_is_not_outdone_by_those_it_makes_stand_out():
    """A rank that slept in half of the steps had no slow steps, and the whole job was called slower in them.

    Recorded: 8 ranks, TP2 x PP2 x DP2; rank 4 sleeps 100 ms in each forward of steps 5-8 and 13-20.
    """
    durations = pd.read_csv(RECORDED / "slow_in_half_of_the_steps.csv.gz")
    durations["dur_ns"] = durations.pop("dur_us") * 1e3
    found = detect(durations, ParallelLayout(tp=2, pp=2, dp=2))
    (verdict,) = found.suspects
    assert (verdict.rank, verdict.slow_steps) == (4, ((5, 8), (13, 20)))
    assert verdict.slowdown == pytest.approx(0.65, abs=0.02)


def test_a_rank_that_recovered_is_transient():
    """A rank would be swapped that is well again."""
    (verdict,) = window(Fault(rank=3, factor=1.08, start=10, stop=20)).suspects
    assert (verdict.rank, verdict.persistence) == (3, Persistence.TRANSIENT)
    assert abs(verdict.first_bad_step - 10) <= 1
    assert abs(verdict.last_bad_step - 19) <= 1


def test_long_sequences_are_not_slow_ranks():
    """The replica with the longest sequences would be blamed."""
    result = window(work_cv=0.4, steps=8)
    assert not result.suspects
    assert {verdict.evidence for verdict in result.verdicts} == {Evidence.WORK}
    assert max(abs(verdict.unequal_work_ns) for verdict in result.verdicts) > 1e6


def test_a_slower_rank_does_not_hide_another():
    """Only the worst of two slow ranks would be repaired."""
    result = window(
        Fault(rank=5, factor=1.5, start=25), Fault(rank=9, factor=1.06, start=25), work_cv=0.35
    )
    assert [verdict.rank for verdict in result.suspects] == [5, 9]


def test_without_replicas_the_own_past_tells():
    """Jobs without data parallelism would have no detection."""
    layout = ParallelLayout(pp=4)
    (verdict,) = window(Fault(rank=2, factor=1.05, start=30), layout=layout).suspects
    assert (verdict.rank, verdict.evidence) == (2, Evidence.HISTORY)


def test_what_cannot_be_known_is_said():
    """A rank that nothing can be compared with would be called healthy."""
    result = window(Fault(rank=2, factor=1.5), layout=ParallelLayout(pp=4), steps=10)
    assert not result.suspects
    assert {verdict.persistence for verdict in result.verdicts} == {Persistence.UNKNOWN}
    assert result.minimum_slowdown is None
    assert any("no healthy replica" in limit for limit in texts(result.limits))


def test_two_ranks_that_fit_as_well_are_both_named():
    """One of two would be blamed by the toss of a coin."""
    layout = ParallelLayout(pp=2, dp=2)
    result = window(
        Fault(rank=0, factor=1.3), layout=layout, steps=12, work_cv=0.4, item_cv=0.005, seed=41
    )
    first = result.suspects[0]
    assert {first.rank, *first.ambiguous_with} == {0, 3}
    assert first.confidence <= 0.5


def test_the_smallest_visible_slow_down_shrinks_with_the_window():
    """People would take silence for health where the window is too short."""
    few, many = window(steps=5), window(steps=60)
    assert 0.02 < few.minimum_slowdown < 0.06
    assert many.minimum_slowdown < few.minimum_slowdown


def test_the_scores_say_how_slow_each_step_was():
    """The picture of a slow rank over time would be wrong."""
    scores = window(Fault(rank=6, factor=1.2, start=20)).scores
    mine = scores[scores["rank"] == 6].set_index("step")["score"]
    assert mine[mine.index >= 20].mean() == pytest.approx(0.2, abs=0.01)
    assert mine[mine.index < 20].mean() == pytest.approx(0.0, abs=0.01)


def test_missing_ranks_and_items_are_left_out():
    """A capture with holes could not be judged."""
    job = SlowRankJob(seed=44, layout=GRID, steps=30, faults=(Fault(rank=6, factor=1.1),))
    frame = job.frame().sample(frac=0.9, random_state=1)
    frame = frame[~frame["rank"].isin([1, 11])]
    result = detect(frame, GRID)
    assert [verdict.rank for verdict in result.suspects] == [6]
    assert len(result.verdicts) == 14
    with pytest.raises(KeyError):
        result.of(1)


def test_without_a_layout_all_ranks_are_peers():
    """A data-parallel capture without metadata would not be judged."""
    job = SlowRankJob(
        seed=45, layout=ParallelLayout(dp=6), steps=15, faults=(Fault(rank=4, factor=1.1),)
    )
    assert [verdict.rank for verdict in detect(job.frame()).suspects] == [4]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"rank": [0]}),
        pd.DataFrame({"rank": [0], "step": 0, "kind": "f", "microbatch": 0, "dur_ns": [0]}),
    ],
)
def test_durations_that_say_nothing_are_refused(frame):
    """An empty table would end in a traceback, or in a clean bill of health."""
    with pytest.raises(TraceFormatError):
        detect(frame)


def test_interleaved_chunks_are_separated():
    """Microbatches of two chunks would be added up, and the odd one out be lost."""
    job = SlowRankJob(seed=46, layout=GRID, steps=12, faults=(Fault(rank=7, factor=1.1),))
    frame = job.frame().assign(chunk=0)
    second = frame.assign(chunk=1, dur_ns=(frame["dur_ns"] * 1.5).astype(np.int64))
    both = pd.concat([frame, second])
    assert [verdict.rank for verdict in detect(both, GRID).suspects] == [7]


@pytest.mark.parametrize("layout", [ParallelLayout(dp=8), GRID, ParallelLayout(pp=4)], ids=str)
@pytest.mark.parametrize(("steps", "at"), [(40, 0), (60, 0), (60, 10), (100, 3), (60, 59)])
@pytest.mark.parametrize("factor", [1.3, 4])
def test_one_slow_step_makes_no_suspect(layout, steps, at, factor):
    """Fails when a pause of one step is reported as a slow rank, in windows of any length."""
    fault = Fault(rank=2, factor=factor, start=at, stop=at + 1)
    result = window(fault, layout=layout, steps=steps)
    assert not result.suspects
    assert result.of(2).slow_steps == ((at, at),)


@pytest.mark.parametrize("steps", [20, 40, 100])
def test_three_steps_of_a_strong_fault_are_found(steps):
    """Fails when a fault that no one could overlook is too short to be reported."""
    (verdict,) = window(Fault(rank=6, factor=1.3, start=10, stop=13), steps=steps).suspects
    assert (verdict.rank, verdict.persistence) == (6, Persistence.TRANSIENT)
    assert verdict.slow_steps == ((10, 12),)
    assert verdict.slowdown == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("layout", [GRID, ParallelLayout(pp=4)], ids=str)
def test_a_rank_that_is_slow_on_and_off_is_reported_by_its_slow_steps(layout):
    """Fails when healthy steps between the slow ones make the fault longer and smaller."""
    faults = [Fault(rank=2, factor=1.3, start=at, stop=at + 4) for at in (25, 33, 41)]
    (verdict,) = window(*faults, layout=layout, steps=60).suspects
    assert (verdict.rank, verdict.persistence) == (2, Persistence.INTERMITTENT)
    assert verdict.slow_steps == ((25, 28), (33, 36), (41, 44))
    assert (verdict.first_bad_step, verdict.last_bad_step) == (25, 44)
    assert verdict.slowdown == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("layout", [ParallelLayout(tp=2), ParallelLayout(pp=2)], ids=str)
@pytest.mark.parametrize("order", ["110100001101", "100110101100", "100101100100", "000000000000"])
def test_one_of_two_ranks_that_is_slow_in_half_of_the_steps_has_all_of_them_named(layout, order):
    """Fails when only one spell of a rank is named, or all steps, as no replica is compared with it."""
    firsts = [6 * pair + 3 * int(second) for pair, second in enumerate(order)]
    faults = [Fault(rank=1, factor=1.6, start=first, stop=first + 3) for first in firsts]
    (verdict,) = window(*faults, layout=layout, steps=72).suspects
    assert (verdict.rank, verdict.persistence) == (1, Persistence.INTERMITTENT)
    named = {step for run in verdict.slow_steps for step in range(run[0], run[1] + 1)}
    assert named == {step for first in firsts for step in range(first, first + 3)}
    assert verdict.slowdown == pytest.approx(0.6, abs=0.03)


def test_runs_of_unlike_strength_are_all_named():
    """Fails when only the steps of the strongest run are named."""
    faults = Fault(rank=5, factor=1.3, start=5, stop=10), Fault(rank=5, factor=2, start=45, stop=50)
    (verdict,) = window(*faults, steps=60).suspects
    assert verdict.slow_steps == ((5, 9), (45, 49))


def test_a_lone_rank_is_as_slow_as_it_became():
    """Fails when the slow-down is told against a mean that holds the slow steps."""
    layout = ParallelLayout(dp=1)
    (verdict,) = window(Fault(rank=0, factor=1.5, start=25), layout=layout).suspects
    assert verdict.evidence is Evidence.HISTORY
    assert verdict.slowdown == pytest.approx(0.5, abs=0.02)
    assert verdict.slow_steps == ((25, 39),)


def test_every_suspect_is_slow_and_likely():
    """Fails when a rank is blamed with a confidence of nothing, or for being fast."""
    faults = [Fault(rank=seed, factor=1.3, start=seed, stop=seed + 2) for seed in range(6)]
    suspects = [
        verdict
        for seed, fault in enumerate(faults)
        for verdict in window(fault, steps=50, seed=60 + seed, work_cv=0.35).suspects
    ]
    assert suspects
    for verdict in suspects:
        assert verdict.slowdown > 0
        assert verdict.confidence * (1 + len(verdict.ambiguous_with)) >= 0.5


def test_more_slow_steps_than_healthy_ones_are_not_the_past():
    """Fails when a rank that is slow most of the time is told against its own slow steps."""
    layout = ParallelLayout(pp=2)
    (verdict,) = window(Fault(rank=1, factor=1.3, start=10), layout=layout).suspects
    assert verdict.slow_steps == ((10, 39),)
    assert verdict.slowdown == pytest.approx(0.3, abs=0.02)

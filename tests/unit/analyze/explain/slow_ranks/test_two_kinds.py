"""A rank without replicas that is slow at times, known from its own steps and by the other stages."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.explain.slow_ranks.detect import detect
from meshscope.analyze.explain.slow_ranks.two_kinds import (
    CONFIDENCE,
    LESS_SURE,
    with_slow_steps_of_single_ranks,
)
from meshscope.analyze.explain.slow_ranks.verdict import Evidence, Persistence
from meshscope.probe.schema.layout import ParallelLayout

PIPELINE = ParallelLayout(pp=3)
STEPS = 12


def durations(factor, seed=1, noise=0.01):
    """Return the passes of one rank a stage; ``factor[rank, step]`` is how much longer they take."""
    ranks = len(factor)
    random = np.random.default_rng(seed)
    rows = [
        (rank, step, kind, 0, microbatch, base * factor[rank, step] * random.normal(1, noise))
        for rank in range(ranks)
        for step in range(STEPS)
        for kind, base in (("forward", 10e6 * (1 + rank)), ("backward", 20e6 * (1 + rank)))
        for microbatch in range(4)
    ]
    names = ["rank", "step", "kind", "chunk", "microbatch", "dur_ns"]
    return pd.DataFrame(rows, columns=names)


def judged(factor, layout=PIPELINE):
    """Return the verdicts by rank."""
    table = durations(factor)
    result = with_slow_steps_of_single_ranks(detect(table, layout), table, layout)
    return {own.rank: own for own in result.verdicts}


@pytest.mark.parametrize(
    ("steps", "persistence", "last"),
    [
        ([0, 2, 4, 6, 8, 10], Persistence.INTERMITTENT, 10),
        ([1, 5, 9], Persistence.INTERMITTENT, 9),
        ([0, 1, 3, 4, 6, 7, 9, 10, 11], Persistence.INTERMITTENT, 11),
    ],
)
def test_a_lone_rank_that_is_slow_at_times_is_found(steps, persistence, last):
    """The healthy stages would be blamed for the steps in which the slow one is not slow."""
    factor = np.ones((3, STEPS))
    factor[1, steps] = 1.4
    found = judged(factor)
    assert [rank for rank, own in found.items() if own.is_slow] == [1]
    own = found[1]
    assert own.slowdown == pytest.approx(0.4, abs=0.02)
    assert own.interval[0] < 0.4 < own.interval[1]
    assert (own.persistence, own.last_bad_step) == (persistence, last)
    assert own.evidence is Evidence.HISTORY
    named = [step for first, end in own.slow_steps for step in range(first, end + 1)]
    assert named == steps


def test_a_lone_rank_is_found_beside_steps_of_unequal_data():
    """Long sequences would hide a slow rank, and its stages be blamed for what it costs."""
    slow = [7, 8, 9, 10, 11]
    factor = np.ones((3, STEPS)) * np.random.default_rng(5).lognormal(0, 0.2, STEPS)
    factor[2, slow] *= 1.5
    table = durations(factor)
    result = with_slow_steps_of_single_ranks(detect(table, PIPELINE), table, PIPELINE)
    own = result.of(2)
    assert [rank.rank for rank in result.suspects] == [2]
    assert own.slowdown == pytest.approx(0.5, abs=0.02)
    assert own.slow_steps == ((7, 11),)
    score = result.scores[result.scores["rank"] == 2].set_index("step")["score"]
    assert score[slow].to_numpy() == pytest.approx(0.5, abs=0.05)
    assert score.drop(slow).to_numpy() == pytest.approx(0.0, abs=0.05)


def test_two_lone_ranks_that_are_slow_in_steps_of_their_own_are_found():
    """Beside one slow rank the other would count as chance, and no repair be believed."""
    layout, factor = ParallelLayout(pp=4), np.ones((4, STEPS))
    factor[0, 2:] = 2.7
    factor[1, [1, 8, 9, 10]] = 1.8
    table = durations(factor)
    result = with_slow_steps_of_single_ranks(detect(table, layout), table, layout)
    slow = {own.rank: own.slow_steps for own in result.suspects}
    assert slow == {0: ((2, 11),), 1: ((1, 1), (8, 10))}


@pytest.mark.parametrize(("second", "sure"), [(1.5, CONFIDENCE), (1.8, LESS_SURE)])
def test_two_ranks_that_are_slow_in_turn_are_both_found(second, sure):
    """Steps in which both are slow would be blamed on none, and the rest on their stages."""
    layout, factor = ParallelLayout(pp=2), np.ones((2, STEPS))
    factor[0, [0, 2, 3, 6, 7, 8, 10]] = 1.8
    factor[1, [1, 2, 5, 6, 9]] = second
    found = judged(factor, layout)
    slow = {rank: own.slowdown for rank, own in found.items() if own.is_slow}
    assert slow == {0: pytest.approx(0.8, abs=0.02), 1: pytest.approx(second - 1.0, abs=0.02)}
    assert {own.confidence for own in found.values()} == {sure}


def three_in_turn(factor):
    """Slow each of three stages in steps of its own."""
    factor[0, [0, 2, 3, 6]], factor[1, [1, 5, 9]], factor[2, [4, 8, 10]] = 1.8, 1.5, 2.2


def one_within_the_other(factor):
    """Slow one stage only where the other is slow too, as longer data does that one stage feels more."""
    factor[:2, [0, 2, 6, 8]], factor[0, [3, 7, 10]] = 1.5, 1.5


def another_factor_when_both(factor):
    """Give both stages longer data in steps of their own, and less of it where both have some."""
    factor[0, [0, 2, 3]], factor[1, [1, 5, 9]], factor[:2, [4, 8, 10]] = 1.8, 1.7, 1.45


@pytest.mark.parametrize(
    ("done_to", "stages"),
    [
        (three_in_turn, 3),
        (one_within_the_other, 2),
        (one_within_the_other, 3),
        (another_factor_when_both, 2),
        (another_factor_when_both, 3),
    ],
)
def test_what_most_ranks_do_is_the_fault_of_none(done_to, stages):
    """Chance on all stages, or data that some feel more, would be a slow rank each."""
    factor = np.ones((3, STEPS))
    done_to(factor)
    found = judged(factor[:stages], ParallelLayout(pp=stages))
    assert not [rank for rank, own in found.items() if own.is_slow]


def test_one_recorded_replica_has_none_to_be_compared_with():
    """A rank that is slow at times would be a heavy stage where only one of the replicas was recorded."""
    factor = np.ones((3, STEPS))
    factor[1, 6:] = 1.5
    layout = ParallelLayout(pp=3, dp=4)
    table = durations(factor)
    table["rank"] = table["rank"].map({0: 0, 1: 4, 2: 8})
    result = with_slow_steps_of_single_ranks(detect(table, layout), table, layout)
    assert [own.rank for own in result.suspects] == [4]


LONG = [0, 2, 3, 5, 8, 9, 11]
"""Steps of longer sequences."""


def host_of_two_stages(factor):
    """Slow two of three stages in the same steps, as a host that throttles does."""
    factor[1:, 5:] = 1.67


def less_with_long_sequences(factor):
    """Give all stages longer data, of which the last feels less."""
    factor[:, LONG] = 2.0
    factor[2, LONG] = 1.6


def more_with_long_sequences(factor):
    """Give all stages longer data, of which the last feels more."""
    factor[:, LONG] = 2.0
    factor[2, LONG] = 2.6


@pytest.mark.parametrize(
    "done_to", [host_of_two_stages, less_with_long_sequences, more_with_long_sequences]
)
def test_a_rank_that_takes_no_longer_than_its_work_is_not_blamed(done_to):
    """What other stages do in the other steps would be the fault of a healthy rank."""
    factor = np.ones((3, STEPS))
    done_to(factor)
    assert not [own for own in judged(factor).values() if own.confidence == CONFIDENCE]


def test_a_stage_of_two_ranks_that_slows_down_is_named_and_not_the_other():
    """Each stage differs from the other: the one whose time did not change would be blamed as well."""
    layout, factor = ParallelLayout(pp=2, tp=2), np.ones((4, STEPS))
    factor[2:, 5:] = 1.67
    slow = {rank for rank, own in judged(factor, layout).items() if own.is_slow}
    assert slow == {2, 3}


def test_one_faster_step_of_another_stage_hides_no_slow_rank():
    """A step in which a healthy stage skips some work would excuse a slow rank."""
    factor = np.ones((3, STEPS))
    factor[2, 6:], factor[0, 3] = 1.5, 0.5
    own = judged(factor)[2]
    assert own.is_slow
    assert own.slow_steps == ((6, 11),)


def test_two_shorter_steps_are_a_weaker_sign():
    """Two first steps with less work would make a healthy rank slow at the highest confidence."""
    factor = np.ones((3, STEPS))
    factor[0, :2] = 0.6
    assert judged(factor)[0].confidence == LESS_SURE


def test_passes_of_few_steps_hide_no_slow_rank():
    """A kind of pass that only some steps have would leave no step to compare."""
    factor = np.ones((3, STEPS))
    factor[1, ::2] = 1.4
    table = durations(factor)
    rare = table[(table["step"] == 4) & (table["kind"] == "forward")].assign(chunk=1)
    table = pd.concat([table, rare])
    result = with_slow_steps_of_single_ranks(detect(table, PIPELINE), table, PIPELINE)
    assert [own.rank for own in result.suspects] == [1]


def test_steps_with_more_data_blame_nobody():
    """Long sequences would be a slow rank on each stage."""
    factor = np.ones((3, STEPS))
    factor[:, ::2] = 1.4
    assert not any(own.is_slow for own in judged(factor).values())


TWO_STAGES = ParallelLayout(pp=2)


def unequal_data(spread=0.08):
    """Return two stages whose steps differ by their data, each step by one factor on both."""
    return np.ones((2, STEPS)) * np.random.default_rng(7).lognormal(0, spread, STEPS)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("slow", [[1, 4, 5, 9, 10, 11], [0, 2, 4, 6, 8, 10]])
def test_of_two_stages_with_unequal_data_the_one_that_takes_longer_is_slow(rank, slow):
    """The healthy stage would be heavy in the steps in which the slow rank is not slow."""
    factor = unequal_data()
    factor[rank, slow] *= 1.7
    found = judged(factor, TWO_STAGES)
    assert [one for one, own in found.items() if own.is_slow] == [rank]
    assert found[rank].slowdown == pytest.approx(0.7, abs=0.03)
    named = [step for first, end in found[rank].slow_steps for step in range(first, end + 1)]
    assert named == slow


def one_is_faster_at_times(factor):
    """Leave out a part of what one stage does in some steps."""
    factor[1, [1, 4, 5, 9, 10, 11]] /= 1.7


def both_in_turn(factor):
    """Slow either stage in steps of its own."""
    factor[0, ::2] *= 1.5
    factor[1, 1::2] *= 1.5


def nothing(factor):
    """Leave the data as the only difference."""


@pytest.mark.parametrize(
    ("done_to", "healthy"),
    [(one_is_faster_at_times, [0]), (both_in_turn, [0, 1]), (nothing, [0, 1])],
)
def test_of_two_stages_none_is_blamed_that_takes_no_longer(done_to, healthy):
    """A healthy rank would be named where only the other one, or the data, differs."""
    factor = unequal_data()
    done_to(factor)
    found = judged(factor, TWO_STAGES)
    assert not [rank for rank in healthy if found[rank].is_slow]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("stages", [2, 3])
def test_noise_has_no_two_kinds_of_steps(seed, stages):
    """A healthy pipeline would have a slow rank by chance."""
    random, layout = np.random.default_rng(seed), ParallelLayout(pp=stages)
    draws = [
        lambda: random.normal(1, 0.05, (3, STEPS)),
        lambda: random.lognormal(0, 0.3, (3, STEPS)),
        lambda: 1 + random.pareto(2.5, (3, STEPS)),
        lambda: random.uniform(1, 1.5, (3, STEPS)),
        lambda: 1 + 0.5 * (random.random((3, STEPS)) < 0.2),
        lambda: 1 + random.exponential(0.5, (3, STEPS)) * (random.random((3, STEPS)) < 0.2),
    ]
    table = durations(draws[seed % 6]()[:stages], seed)
    found = with_slow_steps_of_single_ranks(detect(table, layout), table, layout)
    assert not [own for own in found.verdicts if own.is_slow and own.confidence == CONFIDENCE]


@pytest.mark.parametrize("layout", [None, ParallelLayout(dp=3)])
def test_without_other_stages_nothing_is_said(layout):
    """What no other stage contradicts, such as a longer batch, would be called slow."""
    factor = np.ones((3, STEPS))
    factor[1, ::2] = 1.4
    table = durations(factor)
    result = detect(table, layout)
    assert with_slow_steps_of_single_ranks(result, table, layout) is result

"""How likely chance makes a rank late: bounds, against what counting says."""

from math import comb

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from tests.unit.analyze.explain.causes.test_repair import work_of

from meshscope.analyze.explain.causes.bounds import log_evenly_spaced
from meshscope.analyze.explain.causes.chance import MAX_CHANCE, chance_of_arrivals, chance_of_ranks

NO_PASSES = pd.DataFrame(columns=["rank", "step", "kind", "chunk", "microbatch", "dur_ns"])


def relabelled(late, candidates, runs=None):
    """Return what relabelling says of ranks whose steps ``(ranks, steps[, pieces])`` are late."""
    late = np.asarray(late, np.float64)
    late = late[:, :, None] if late.ndim == 2 else late
    work = work_of(1e6 * (1.0 + late))
    return chance_of_ranks(work, None, NO_PASSES, candidates, runs or {})


def late_in(ranks, steps, **of_rank):
    """Return ranks that are late by a half in some of their steps."""
    late = np.zeros((ranks, steps))
    for rank, own in of_rank.items():
        late[int(rank[1:]), list(own)] = 0.5
    return late


@pytest.mark.parametrize(("ranks", "steps"), [(2, 12), (4, 9), (8, 6)])
def test_the_last_in_every_step_has_the_chance_that_counting_gives(ranks, steps):
    """Fails when the bound is looser, or tighter, than ranks * ranks ** -steps where that is exact."""
    chance = relabelled(late_in(ranks, steps, r1=range(steps)), [1])[1]
    assert chance.by_step == pytest.approx(ranks * float(ranks) ** -steps, rel=1e-3)
    assert not chance.explains


def test_noise_in_the_backward_does_not_hide_who_is_last_in_every_step():
    """Fails when a rank that sleeps in each forward is jitter, because the passes behind vary from step to step."""
    late = np.random.default_rng(5).uniform(0.0, 0.12, (2, 11, 8))
    late[1, :, 0] += 1.0
    (chance,) = relabelled(late, [1]).values()
    assert chance.by_step == pytest.approx(2.0**-10, rel=1e-3)
    assert not chance.explains


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("late", [8, 12, 20])
def test_the_bound_is_never_below_what_counting_gives(ranks, late):
    """Fails when a rank is called slow on evidence that it does not have: of 40 late steps it has some."""
    draw = np.random.default_rng(late)
    steps = np.zeros((ranks, 40))
    others = np.delete(np.arange(ranks), 1)
    whose = [1] * late + draw.choice(others, 40 - late).tolist()
    steps[whose, np.arange(40)] = 0.5
    exact = sum(comb(40, k) * (ranks - 1) ** (40 - k) for k in range(late, 41)) / ranks**40
    chance = relabelled(steps, [1])[1]
    assert chance.by_step >= min(1.0, ranks * exact) * (1 - 1e-9)
    assert chance.explains == (chance.by_step > MAX_CHANCE)


def test_ranks_that_are_slow_in_turn_are_found_together():
    """Fails when each of two slow ranks hides in the late steps of the other one."""
    found = relabelled(late_in(4, 24, r1=range(0, 16, 2), r2=range(1, 17, 2)), [1, 2])
    assert not found[1].explains
    assert not found[2].explains


def test_ranks_that_are_late_in_turn_by_chance_are_not():
    """Fails when the halves of chance delays that happen to be larger are called slow together."""
    draw = np.random.default_rng(2)
    late = np.zeros((8, 200))
    late[draw.integers(8, size=200), np.arange(200)] = 0.5
    assert all(own.explains for own in relabelled(late, range(8)).values())


def test_no_other_rank_comes_along_with_one_that_carries_a_pair():
    """Fails when the latest of the other ranks is called slow because one beside it nearly is."""
    draw = np.random.default_rng(8)
    late = np.zeros((8, 40))
    whose = np.concatenate([np.full(13, 1), draw.integers(2, 8, size=27)])
    late[whose, np.arange(40)] = 0.5
    found = relabelled(late, range(8))
    assert all(own.explains for rank, own in found.items() if rank != 1)


def test_a_second_slow_rank_is_found_behind_a_slower_one():
    """Fails when the late steps of a slow rank count as chance for the next one."""
    late = late_in(4, 12, r1=range(12), r2=range(12))
    late[1] *= 10
    found = relabelled(late, [1, 2])
    assert not found[1].explains
    assert not found[2].explains


def test_pieces_of_late_steps_count_once():
    """Fails when each pass of a step in which a host was busy is another witness."""
    draw = np.random.default_rng(4)
    late = 0.5 * (draw.random((4, 40, 1)) < 0.2) + np.zeros((4, 40, 16))
    late[1, :10] = 0.5
    whole = relabelled(late, [1])[1]
    assert whole.explains
    late = 0.5 * (draw.random((4, 40, 16)) < 0.2)
    late[1, :, :8] = 0.5
    assert not relabelled(late, [1])[1].explains


@pytest.mark.parametrize("step", [3, 39])
def test_one_late_step_is_chance_whatever_its_pieces_say(step):
    """Fails when a rank is swapped for a single step: exchanging the ranks finds another one."""
    late = np.zeros((4, 40, 16))
    late[1, step] = 2.0
    assert relabelled(late, [1], {1: [(step, step)]})[1].explains


def test_late_steps_that_begin_and_stay_are_no_chance_even_against_one_peer():
    """Fails when a rank that became slow late in a window hides behind the one peer that it has."""
    late = late_in(2, 34, r1=range(26, 34))
    assert not relabelled(late, [1], {1: [(26, 33)]})[1].explains
    steps = [0, 3, 4, 11, 14, 22, 23, 30]
    scattered = late_in(2, 34, r1=steps)
    assert relabelled(scattered, [1], {1: [(step, step) for step in steps]})[1].explains


@pytest.mark.parametrize("jitter", [0.0, 0.01])
def test_late_steps_at_even_distances_are_no_chance_even_against_one_peer(jitter):
    """Fails when a rank slow in every fourth step hides behind the one peer that it has; noise or none."""
    steps = range(1, 40, 4)
    late = late_in(2, 40, r1=steps) + jitter * np.random.default_rng(3).standard_normal((2, 40))
    chance = relabelled(late, [1], {1: [(step, step) for step in steps]})[1]
    assert not chance.explains
    # One of two ranks is the last in all ten.
    assert chance.by_step == pytest.approx(2 * 2.0**-10, rel=1e-3)
    few = range(1, 40, 10)
    late = late_in(2, 40, r1=few)
    assert relabelled(late, [1], {1: [(step, step) for step in few]})[1].explains


def in_kinds(late, is_second):
    """Return what relabelling says of rank 1 where some steps have a second piece, late by so much."""
    pieces = np.zeros((*late.shape, 2))
    pieces[:, :, 0] = late
    work = work_of(1e6 * (1.0 + pieces))
    cells = work.cells[(work.cells["interval"] == 0) | work.cells["step"].isin(is_second)]
    return chance_of_ranks(replace(work, cells=cells), None, NO_PASSES, [1], {})[1]


def test_a_kind_of_step_is_a_window_of_its_own():
    """Fails when a rank that is slow with one of two models that train in turn is late by chance."""
    steps = np.random.default_rng(5).choice(40, 12, replace=False)
    late = late_in(2, 40, r1=steps)
    assert in_kinds(late, []).by_step == pytest.approx(2 * 2.0**-12, rel=1e-3)
    found = in_kinds(late_in(2, 40, r1=steps[:10]), steps[:10])
    assert not found.explains
    # Ten steps of two kinds.
    assert found.by_step == pytest.approx(2 * 2 * 2.0**-10, rel=1e-3)
    assert in_kinds(late_in(2, 40, r1=steps[:9]), steps[:10]).explains
    assert in_kinds(late_in(2, 40, r1=steps[:10]), steps[5:]).explains


def test_evenly_spaced_sets_are_counted():
    """Fails when the price of looking for a rhythm is too low: all sets of five steps, by hand."""
    # Pairs 10; threes at spacing 1: 3, at 2: 1; fours: 2; five: 1.
    assert np.exp(log_evenly_spaced(5)) == pytest.approx(17)


def arrived(late_ns):
    """Return arrivals of ranks at as many collectives a step: ``(ranks, steps, collectives)``."""
    count = late_ns.shape[2]
    rank, step, number = (axis.ravel() for axis in np.indices(late_ns.shape))
    wait = late_ns - late_ns.max(axis=0)
    join = step * count + number
    return pd.DataFrame({"rank": rank, "step": step, "join": join, "late_ns": wait.ravel()})


def test_the_last_to_arrive_in_every_step_of_a_few_is_slow_with_the_chance_of_counting():
    """Fails when fifteen collectives in three steps count as fifteen witnesses, or as none."""
    late = np.random.default_rng(6).exponential(1e6, (4, 3, 5))
    late[3] += 3e7
    chance = chance_of_arrivals(dict.fromkeys(range(4), 0), arrived(late), 3)
    assert chance.by_step == pytest.approx(4 * 4.0**-3, rel=1e-3)
    assert not chance.explains
    late[3, 1] -= 6e7
    assert chance_of_arrivals(dict.fromkeys(range(4), 0), arrived(late), 3).explains


def test_a_rank_without_a_peer_is_not_judged():
    """Fails when there is a chance for ranks that nothing is compared with."""
    assert relabelled(late_in(1, 12, r0=range(6)), [0]) == {}

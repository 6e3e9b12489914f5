"""Work taken out of durations."""

import numpy as np
import pytest

from meshscope.analyze.explain.slow_ranks.cube import Cube
from meshscope.analyze.explain.slow_ranks.normalise import (
    Scores,
    Slopes,
    common_mode,
    item_mean,
    mean_of_others,
    median_of_others,
    replica_mean,
    step_scores,
)


def job(replicas=3, places=4, items=16, seed=5):
    """Return exact durations [1, replica, place, 1, item]; the last place has a fixed part."""
    work = np.random.default_rng(seed).lognormal(0.0, 0.4, (1, replicas, 1, 1, items))
    fixed = np.where(np.arange(places) == places - 1, 0.5, 0.0)[None, None, :, None, None]
    return work + fixed


def line_of(step, trusted):
    """Return the slopes that one step gives."""
    ranks = np.arange(step.shape[1] * step.shape[2])
    cube = Cube(tuple(ranks), ranks * 0, ranks, ranks, step.shape[:3])
    slopes = Slopes.empty(cube, step.shape[3])
    slopes.add(step)
    return slopes.line(trusted)


def as_scores(total):
    """Return scores with a noise of 1 % that no other place told."""
    kinds = total[..., None]
    error = np.full(total.shape, 0.01)
    return Scores(kinds, total, error, np.ones_like(kinds), np.zeros(total.shape, bool))


def test_a_place_that_moves_together_is_no_slow_rank():
    """A stage that got more work would make suspects of all its ranks."""
    scores = np.zeros((1, 6, 2))
    scores[0, :, 1] = 0.06
    common = common_mode(as_scores(scores), np.ones((1, 6, 2), bool))
    assert common == pytest.approx(scores)


def test_unequal_work_leaves_no_trace():
    """Ranks with long sequences would be called slow."""
    step = job()
    trusted = np.ones(step.shape[:3], bool)
    scores = step_scores(step, item_mean(step), line_of(step, trusted), trusted)
    assert np.abs(scores.total).max() < 0.02
    assert scores.referenced.all()


@pytest.mark.parametrize("place", [0, 3])
def test_a_slow_rank_shows_by_its_factor(place):
    """The slow-down would be divided out with the work."""
    step = job()
    usual = item_mean(step)
    trusted = np.ones(step.shape[:3], bool)
    step[0, 1, place] *= 1.3
    scores = step_scores(step, usual, line_of(step, trusted), trusted)
    assert scores.total[0, 1, place] == pytest.approx(0.3, abs=0.03)
    assert np.unravel_index(scores.total.argmax(), scores.total.shape) == (0, 1, place)


def test_a_rank_that_is_not_trusted_is_no_reference():
    """A slow rank would make the other stages of its replica look fast."""
    step = job()
    usual = item_mean(step)
    trusted = np.ones(step.shape[:3], bool)
    trusted[0, 1, 0] = False
    step[0, 1, 0] *= 2.0
    scores = step_scores(step, usual, line_of(step, trusted), trusted)
    assert np.abs(np.delete(scores.total[0, 1], 0)).max() < 0.02


def test_a_place_whose_work_nobody_tells_is_neither_judged_nor_compared_with():
    """Beside a slow rank, long sequences of its only other stage would be blamed on a healthy one."""
    step = job(places=2)
    usual = item_mean(step)
    trusted = np.ones(step.shape[:3], bool)
    trusted[0, 1, 0] = False
    line = line_of(step, trusted)
    scores = step_scores(step, usual, line, trusted)
    assert np.isnan(scores.total).tolist() == [[[False, False], [False, True], [False, False]]]
    longer = usual.copy()
    longer[0, 1] *= 2.0
    first, second = (replica_mean(mean, line, trusted)[0, ::2] for mean in (usual, longer))
    assert first == pytest.approx(second)


def test_noise_alone_is_not_taken_for_work():
    """Jobs with equal microbatches would have the noise of other stages added."""
    step = 1 + 0.02 * np.random.default_rng(3).standard_normal((1, 4, 4, 2, 16))
    assert not line_of(step, np.ones((1, 4, 4), bool)).slope.any()


def test_replicas_are_compared_at_equal_work():
    """Replicas whose sequences were longer would be the measure of the others."""
    step = job(items=6)
    trusted = np.ones(step.shape[:3], bool)
    many = job(items=400, seed=6)
    line = line_of(many, trusted)
    expected = replica_mean(item_mean(step), line, trusted)
    ratio = expected[0, :, :, 0] / expected[0, :, :1, 0]
    assert np.ptp(ratio, axis=0).max() < 0.05
    raw = np.ptp(item_mean(step)[0, :, 0, 0])
    assert raw > 0.1


def test_the_median_leaves_the_rank_out():
    """A slow rank would be part of what it is compared with."""
    values = np.array([[1.0, 2.0, 9.0, 4.0]])
    known = np.array([[True, True, True, False]])
    assert median_of_others(values, known).tolist() == [[5.5, 5.0, 1.5, 2.0]]
    alone = median_of_others(values[:, :1], known[:, :1])
    assert np.isnan(alone).all()


def test_ranks_of_one_block_do_not_explain_each_other():
    """Tensor-parallel ranks, which wait for each other, would hide a slow one."""
    values = np.array([1.0, 2.0, 30.0, 50.0]).reshape(1, 1, 4, 1, 1)
    assert mean_of_others(values, 2).ravel().tolist() == [40, 40, 1.5, 1.5]
    assert mean_of_others(values[:, :, :2], 1).ravel().tolist() == [2, 1]


def test_what_all_ranks_have_in_common_is_taken_off():
    """A step that is slow for the whole job would make suspects of all ranks."""
    scores = np.full((1, 4, 2), 0.05)
    scores[0, 2, 1] = 0.5
    trusted = np.ones((1, 4, 2), bool)
    common = common_mode(as_scores(scores), trusted)
    assert common == pytest.approx(np.full((1, 4, 2), 0.05), abs=0.003)
    alone = common_mode(as_scores(scores[:, :1, :1]), trusted[:, :1, :1])
    assert alone.tolist() == [[[0.0]]]


def test_a_stall_in_one_microbatch_is_drawn_in():
    """One long microbatch would count as a slow rank."""
    step = 1 + 0.01 * np.random.default_rng(4).standard_normal((1, 2, 1, 1, 16))
    usual = np.ones((1, 2, 1, 1))
    step[0, 0, 0, 0, 3] = 50.0
    trusted = np.ones((1, 2, 1), bool)
    assert step_scores(step, usual, line_of(step, trusted), trusted).total[0, 0, 0] < 0.03

"""Of thousands of ranks those that are followed hold every slow one, and the answer is that of following all."""

import tracemalloc

import numpy as np
import pytest

from meshscope.analyze.explain.slow_ranks.cube import cube_of
from meshscope.analyze.scale import ranks_to_follow as module
from meshscope.analyze.scale.first_answer import outlook_of
from meshscope.analyze.scale.ranks_to_follow import followed, standing_out
from meshscope.analyze.scale.slow_ranks import first_answer
from meshscope.analyze.scale.survey import SURVEY_ROW_BYTES, Survey
from meshscope.probe.schema.layout import ParallelLayout

from .many_ranks import own_work, summaries_of

STEPS, SLOW = 120, 777
WIDE = ParallelLayout(tp=2, pp=4, dp=256)
FLAT = ParallelLayout(tp=1, pp=1, dp=1536)
FLAT_CUBE = cube_of(tuple(range(FLAT.world_size)), FLAT)


def steady(own, by=1.06):
    """Slow the rank in all steps."""
    own[SLOW] *= by


def late(own):
    """Slow it from some step on."""
    own[SLOW, 70:] *= 1.06


def for_a_while(own):
    """Slow it in some steps that follow each other."""
    own[SLOW, 40:60] *= 1.08


def at_times(own):
    """Slow it in every sixth step."""
    own[SLOW, ::6] *= 1.2


def survey_of_work(own):
    """Return what a look at all rows keeps of such work."""
    ranks, steps = own.shape
    wall = own.max(axis=0)
    kept = own.astype(np.float32)
    return Survey(np.arange(ranks), np.arange(steps), wall, wall, kept, np.zeros_like(kept))


@pytest.mark.parametrize("fault", [steady, late, for_a_while, at_times])
@pytest.mark.parametrize(
    ("layout", "noise"),
    [(WIDE, {}), (WIDE, {"unequal": 0.2}), (WIDE, {"tails": True}), (FLAT, {})],
    ids=["usual", "unequal work", "heavy tails", "flat"],
)
def test_a_slow_rank_is_followed_and_most_others_are_not(layout, noise, fault):
    """Fails when a slow rank is left out of the tests, or thousands of healthy ranks cost as much as before."""
    own = own_work(layout, STEPS, **noise)
    fault(own)
    chosen = followed(survey_of_work(own), layout, knows_work=False)
    assert chosen[SLOW]
    assert chosen.mean() < 0.6


def test_a_whole_replica_that_is_slow_is_followed():
    """Fails when the work of a replica explains away a slow host that holds all of it."""
    own = own_work(WIDE, STEPS)
    cube = cube_of(tuple(range(WIDE.world_size)), WIDE)
    own[cube.replica == 99, 60:] *= 1.1
    assert set(np.flatnonzero(cube.replica == 99)) <= set(standing_out(own, cube))


def evaluated(own, cube):
    """Give everybody a step without passes, as an evaluation is."""
    own[:, 30] = 0


def interrupted(own, cube):
    """Give one replica a step without passes."""
    own[cube.replica == 99, 50] = 0


def partly_recorded(own, cube):
    """Leave out the passes of one place, and those of another in a few steps."""
    own[cube.place == 6] = 0
    own[cube.place == 5, 10:14] = 0


@pytest.mark.parametrize("layout", [WIDE, FLAT], ids=["wide", "flat"])
@pytest.mark.parametrize("without_passes", [evaluated, interrupted, partly_recorded])
def test_steps_without_passes_hide_no_slow_rank(layout, without_passes):
    """Fails when one step without passes, as an evaluation is, leaves all ranks out of the tests."""
    cube = cube_of(tuple(range(layout.world_size)), layout)
    own = own_work(layout, STEPS)
    own[SLOW] *= 1.5
    without_passes(own, cube)
    assert SLOW in standing_out(own.astype(np.float32), cube)
    assert followed(survey_of_work(own), layout, knows_work=False)[SLOW]


def test_without_any_pass_nobody_stands_out():
    """Fails when a run whose passes nobody recorded ends in a traceback instead of the error that says so."""
    nothing = np.zeros((FLAT.world_size, STEPS), dtype=np.float32)
    assert not len(standing_out(nothing, cube_of(tuple(range(FLAT.world_size)), FLAT)))


def test_several_slow_ranks_are_followed():
    """Fails when only the first few of a dozen slow ranks are looked at closely."""
    own = own_work(FLAT, 60, cv=0.05)
    slow = np.arange(700, 712)
    own[slow] *= 1.06
    assert set(slow) <= set(standing_out(own.astype(np.float32), FLAT_CUBE))


@pytest.mark.parametrize("share", [0.11, 0.3, 0.45])
def test_many_slow_ranks_do_not_hide_each_other(share):
    """Fails when a tenth of all ranks is slow, passes for noise, and nobody is blamed."""
    own = own_work(FLAT, 60)
    slow = np.random.default_rng(0).permutation(FLAT.world_size)[: int(share * FLAT.world_size)]
    own[slow] *= 1.5
    found = standing_out(own.astype(np.float32), FLAT_CUBE)
    assert len(set(found) & set(slow)) >= module.MOST_STANDING_OUT


@pytest.mark.parametrize("places", [1, 2, 4])
def test_a_look_keeps_to_the_memory_that_is_counted_for_it(places, monkeypatch):
    """Fails when a large job whose replicas have one or two ranks takes more memory than its limit allows."""
    layout = ParallelLayout(tp=1, pp=places, dp=2048 // places)
    own, cube = own_work(layout, 240).astype(np.float32), cube_of(tuple(range(2048)), layout)
    monkeypatch.setattr(module, "_RANKS", 64)
    tracemalloc.start()
    standing_out(own, cube)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The survey itself keeps 8 bytes a row.
    assert most / own.size + 8 < SURVEY_ROW_BYTES


def test_healthy_ranks_seldom_stand_out():
    """Fails when the quick look takes noise for slow ranks and saves nothing."""
    own, cube = own_work(WIDE, STEPS), cube_of(tuple(range(WIDE.world_size)), WIDE)
    assert len(set(cube.replica[standing_out(own, cube)])) < 16


def test_the_ranks_that_show_the_work_of_a_replica_look_no_calmer_than_the_others():
    """Fails when hundreds of healthy ranks seem to have slow steps, as their own step often was the median they are held against."""
    layout = ParallelLayout(tp=4, pp=4, dp=128)
    own = own_work(layout, 500).astype(np.float32)
    cube = cube_of(tuple(range(layout.world_size)), layout)
    assert len(set(cube.replica[standing_out(own, cube)])) <= 4


@pytest.mark.parametrize("seed", range(8))
def test_a_faint_stretch_stands_out(seed):
    """Fails when a stretch that the tests would blame is lost in the rank's own mean, or in noise that was measured too low."""
    layout, steps, errors = ParallelLayout(tp=1, pp=1, dp=720), 24, 8
    own = own_work(layout, STEPS, seed=seed, cv=0.05)
    own[333, 50 : 50 + steps] *= 1 + errors * 0.05 / np.sqrt(steps)
    assert 333 in standing_out(own.astype(np.float32), cube_of(tuple(range(720)), layout))


def test_a_small_job_is_followed_whole():
    """Fails when a job without ranks to spare is judged by some of them."""
    layout = ParallelLayout(tp=2, pp=2, dp=32)
    assert followed(survey_of_work(own_work(layout, STEPS)), layout, knows_work=False).all()


@pytest.mark.parametrize("fault", [steady, late, at_times])
def test_the_answer_is_that_of_following_all(fault, tmp_path, monkeypatch):
    """Fails when a large run has another slow rank, first step or price than a close look at all ranks gives."""
    own = own_work(FLAT, STEPS)
    fault(own)
    made = summaries_of(own, FLAT, tmp_path, schedule="none")
    some = outlook_of(made).answer
    monkeypatch.setattr(module, "MOST_FOLLOWED", 0.0)
    whole = first_answer(made)
    assert [one.verdict.rank for one in some.slow] == [SLOW]
    (one,), (other,) = some.slow, whole.slow
    assert one.verdict.slow_steps == other.verdict.slow_steps
    assert one.verdict.slowdown == pytest.approx(other.verdict.slowdown, abs=0.002)
    assert one.price.return_ns == pytest.approx(other.price.return_ns, rel=0.02)
    assert (some.ranks, some.step_ns) == (whole.ranks, whole.step_ns)
    assert some.minimum_slowdown == pytest.approx(whole.minimum_slowdown, rel=0.05)


@pytest.mark.parametrize("tells_mesh", [True, False], ids=["mesh", "no mesh"])
def test_work_that_the_tests_know_hides_no_slow_rank(tells_mesh, tmp_path):
    """Fails when unequal work, which its tokens explain, leaves a slow rank out: with a mesh, or without."""
    layout, slow = ParallelLayout(tp=1, pp=1, dp=720), 300
    rng = np.random.default_rng(0)
    tokens = np.exp(rng.normal(0, 0.5, (layout.world_size, 60))) * 1000
    own = own_work(layout, 60) * tokens / 1000
    own[slow] *= 1.06
    assert not followed(survey_of_work(own), layout, knows_work=False)[slow]
    made = summaries_of(own, layout, tmp_path, "none", tokens=tokens, tells_mesh=tells_mesh)
    assert [one.verdict.rank for one in first_answer(made).slow] == [slow]


def test_a_healthy_run_blames_nobody(tmp_path):
    """Fails when ranks that were picked because they stand out are judged as if they had been picked blindly."""
    for seed in range(2):
        own = own_work(FLAT, STEPS, seed=seed, tails=True)
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert not first_answer(summaries_of(own, FLAT, folder, schedule="none")).slow

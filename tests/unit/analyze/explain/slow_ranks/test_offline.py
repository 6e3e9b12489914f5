"""The tests on a recorded window: nobody is left out whom they blame, whatever is judged at a time."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.explain.slow_ranks.grid import grid_of
from meshscope.analyze.explain.slow_ranks.judge import Judge
from meshscope.analyze.explain.slow_ranks.offline import budgets_of, may_stand_out, run_tests
from meshscope.analyze.explain.slow_ranks.settings import DetectionSettings
from meshscope.analyze.explain.slow_ranks.stretches import Peak
from meshscope.analyze.explain.slow_ranks.window import Window
from meshscope.probe.schema.layout import ParallelLayout

SETTINGS = DetectionSettings()
STAGES, REPLICAS = 2, 8
RANKS = STAGES * REPLICAS


def one_by_one(scored):
    """Return the tests on all ranks, each step judged by itself."""
    steps, ranks = scored.own.shape
    judge = Judge(ranks, SETTINGS, budgets_of(scored, SETTINGS))
    past, peers = Peak.none(ranks), Peak.none(ranks)
    nobody = np.zeros(ranks, dtype=bool)
    for at in range(steps):
        look = judge.see(scored.own[at], scored.peers[at], scored.doubt, nobody)
        past.see(at, look.past)
        peers.see(at, look.peers)
    return past, peers


def scored_window(durations):
    """Return the scores of a window of durations [step, rank]; NaN is a step without a record."""
    step, rank = np.nonzero(np.isfinite(durations))
    columns = {"rank": rank, "step": step, "kind": "forward", "microbatch": 0}
    table = pd.DataFrame({**columns, "dur_ns": durations[step, rank]})
    grid = grid_of(table, ParallelLayout(tp=1, pp=STAGES, dp=REPLICAS))
    return Window(grid).score(grid.cube.present, SETTINGS)


def slow_from(durations, rng):
    """Make a rank slow for good."""
    durations[len(durations) // 3 :, rng.integers(RANKS)] *= 1.05


def slow_now_and_then(durations, rng):
    """Make a rank slow in every fifth step."""
    durations[::5, rng.integers(RANKS)] *= 1.3


def stalled(durations, rng):
    """Make single steps of all ranks very long."""
    durations[rng.random(durations.shape) < 0.02] *= 10.0


def wandering(durations, rng):
    """Let the speed of each rank drift."""
    durations *= np.exp(np.cumsum(0.002 * rng.standard_normal(durations.shape), axis=0))


def with_gaps(durations, rng):
    """Take some records away."""
    slow_from(durations, rng)
    durations[rng.random(durations.shape) < 0.03] = np.nan


def untouched(durations, rng):
    """Leave all ranks healthy."""


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("steps", [2, 24, 40, 43, 160, 330])
@pytest.mark.parametrize(
    "change", [untouched, slow_from, slow_now_and_then, stalled, wandering, with_gaps]
)
def test_what_is_found_is_that_of_each_rank_and_step_by_itself(steps, change):
    """Fails when a rank that a test blames is not followed, or one that is has another result."""
    for seed in range(3):
        rng = np.random.default_rng([seed, steps])
        durations = 1e6 * (1.0 + 0.01 * rng.standard_normal((steps, RANKS)))
        change(durations, rng)
        scored = scored_window(durations)
        (past, peers), found = one_by_one(scored), run_tests(scored, SETTINGS)
        followed = may_stand_out(scored, SETTINGS, budgets_of(scored, SETTINGS))
        assert (np.maximum(past.strength, peers.strength)[~followed] < 1.0).all()
        for wanted, got in ((past, found.past), (peers, found.peers)):
            for name in ("strength", "first", "last"):
                exact = getattr(wanted, name)[followed].tolist()
                assert getattr(got, name)[followed].tolist() == exact


def test_of_many_healthy_ranks_next_to_none_is_followed():
    """Fails when the bounds are so loose that a large job costs what it did without them."""
    rng = np.random.default_rng(7)
    scored = scored_window(1e6 * (1.0 + 0.01 * rng.standard_normal((400, RANKS))))
    assert may_stand_out(scored, SETTINGS, budgets_of(scored, SETTINGS)).sum() <= 1

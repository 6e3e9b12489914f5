"""A cause is hidden by the one with which it returns more than both do alone."""

import numpy as np

from meshscope.analyze.explain.causes.hiding import hiding
from meshscope.analyze.explain.causes.shapley_player import Player, Union
from meshscope.analyze.explain.replay.edge_effect import edge_effect


def players(count):
    """Return slow ranks."""
    nothing = edge_effect(np.zeros(1))
    return [Player("straggler_rank", {"rank": n}, Union.WORKERS, nothing) for n in range(count)]


def times(*gone, base=100.0):
    """Return the step time of every coalition of three: 10 more while any of some are there."""
    masks = np.arange(8)
    extra = [sum(1 << n for n in group) for group in gone]
    return masks, base + 10.0 * sum(((masks & own) != 0).astype(float) for own in extra)


def test_two_that_are_slow_alike_hide_each_other():
    """Repairing one would be told to return nothing, without a word on the other."""
    masks, step = times((0, 1), (2,))
    first, second, third = hiding(players(3), masks, step, 120.0)
    assert first.where == {"rank": 1}
    assert second.where == {"rank": 0}
    assert first.pair_gain_frac == 10 / 120
    assert third is None


def test_causes_that_add_up_hide_nothing():
    """Every cause would be called hidden."""
    masks, step = times((0,), (1,), (2,))
    assert hiding(players(3), masks, step, 130.0) == [None, None, None]


def test_pairs_that_were_not_replayed_hide_nothing():
    """The time of another coalition would be taken for that of the pair."""
    masks, step = times((0, 1), (2,))
    kept = np.array([mask for mask in masks if mask != 0b100])
    assert hiding(players(3), kept, step[kept], 120.0)[0] is None

"""Ranks that are slower by one factor in all pieces of some steps."""

import numpy as np
import pytest
from tests.chance_noise import KINDS

from meshscope.analyze.explain.causes.one_factor import is_by_one_factor
from meshscope.analyze.explain.causes.pieces import table_of

STEPS, PIECES = 13, 8
SLOW = [0, 1, 2, 6, 7, 10]


def pieces(factor, seed=3, noise=0.02):
    """Return pieces of work; ``factor[step, piece, rank]`` is how much longer each takes."""
    _, count, ranks = factor.shape
    random = np.random.default_rng(seed)
    base = np.linspace(1e6, 3e6, count)[None, :, None]
    value = base * factor * random.normal(1, noise, factor.shape)
    step, piece, rank = (own.ravel() for own in np.indices(factor.shape))
    return table_of(np.arange(ranks), rank, step, piece, value.ravel())


def is_slow(factor, at=1):
    """Return the answer on one rank of those with such factors."""
    present = np.ones(factor.shape[2], dtype=bool)
    return is_by_one_factor(pieces(factor), present, np.array([at]))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_device_that_slows_down_at_times_is_reported(ranks):
    """Beside one peer, a slow device would be called chance."""
    factor = np.ones((STEPS, PIECES, ranks))
    factor[SLOW, :, 1] = 2.5
    assert is_slow(factor)
    assert not is_slow(factor, at=0)


def test_a_pause_in_some_pieces_is_none():
    """Garbage collections would be called a slow device."""
    factor = np.ones((STEPS, PIECES, 2))
    factor[SLOW, 3, 1] = 20.0
    assert not is_slow(factor)


@pytest.mark.parametrize("seed", range(20))
def test_delays_of_any_length_are_none(seed):
    """A crowded host would be called a slow device."""
    random = np.random.default_rng(seed)
    factor = np.ones((STEPS, PIECES, 2))
    factor[SLOW, :, 1] += random.exponential(1.0, (len(SLOW), 1))
    assert not is_slow(factor)


def test_a_peer_that_slows_down_as_well_excuses():
    """Chance that hit both ranks would be told of one of them."""
    factor = np.ones((STEPS, PIECES, 2))
    factor[SLOW, :, 1] = 2.5
    factor[4, :, 0] = 2.5
    assert not is_slow(factor)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_peer_that_is_faster_at_times_makes_nobody_slow(ranks):
    """A peer that had less to do in some steps would make the rank whose time is constant slow in the others."""
    factor = np.ones((STEPS, PIECES, ranks))
    factor[SLOW, :, 0] = 0.4
    assert not is_slow(factor)


def test_data_of_many_peers_hides_no_slow_device():
    """Steps of longer sequences would look like chance that hits all ranks."""
    factor = np.ones((STEPS, PIECES, 4))
    factor *= np.random.default_rng(7).uniform(0.5, 2.0, (STEPS, 1, 1))
    factor[SLOW, :, 1] *= 2.5
    assert is_slow(factor)


def test_a_step_of_few_pieces_tells_nothing_beside_steps_of_many():
    """The mean number of pieces would hide that a step has one or two, which a pause hits as well."""
    own = pieces(
        np.where(np.isin(np.arange(STEPS), SLOW)[:, None, None], [1.0, 2.5], 1.0)
        * np.ones((1, PIECES, 1))
    )
    rows = (own.step != SLOW[0]) | (own.kind < 2)
    few = own._replace(step=own.step[rows], kind=own.kind[rows], value=own.value[rows])
    both = np.ones(2, dtype=bool)
    assert is_by_one_factor(own, both, np.array([1]))
    assert not is_by_one_factor(few, both, np.array([1]))


def test_too_few_pieces_tell_nothing():
    """A step of one piece would make any pause a slow device."""
    factor = np.ones((STEPS, 2, 2))
    factor[SLOW, :, 1] = 2.5
    assert not is_slow(factor)


@pytest.mark.parametrize("noise", KINDS, ids=str)
def test_delays_of_whole_steps_by_chance_are_none(noise):
    """Who is late by chance, in all of a step, would be called slow beside one peer."""
    for number in range(10):
        steps = noise.steps(4000 + number, 2, 20)
        factor = np.repeat(steps.T[:, None, :], PIECES, axis=1)
        assert not is_slow(factor, at=0)
        assert not is_slow(factor, at=1)

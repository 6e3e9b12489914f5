"""Which groups of ranks wait for one another, where several explain the same."""

import numpy as np
import pytest

from meshscope.analyze.explain.unrecorded_joins import evidence
from meshscope.analyze.explain.unrecorded_joins.places import Places

RESOLUTION_NS = 10.0
STEPS, FIRST, SECOND = 17, 0, 1


def pair(*, early):
    """Return two ranks that depart together, 1 ms after the second is ready; in some steps the first leaves before."""
    random = np.random.default_rng(3)
    step = np.repeat(np.arange(STEPS), 2)
    rank = np.tile([FIRST, SECOND], STEPS)
    ready = 1e9 * step + np.where(rank == FIRST, 10e6, random.uniform(90e6, 110e6, STEPS)[step])
    last = np.maximum.reduceat(ready, np.arange(0, 2 * STEPS, 2))[step]
    depart = last + random.uniform(1.0e6, 1.2e6, 2 * STEPS)
    depart -= np.where((rank == FIRST) & (step < early), 20e6, 0.0)
    one = np.zeros(2 * STEPS, dtype=np.int64)
    return Places(rank, step, one, one + 1, ready, depart)


@pytest.mark.parametrize(("early", "joined"), [(0, True), (1, True), (3, False)])
def test_one_step_of_few_may_speak_against_a_join(early, joined):
    """A slow rank would be priced at nothing because two operations changed places once."""
    tested = evidence.held_against(pair(early=early), {FIRST: 0, SECOND: 0}, RESOLUTION_NS, 1e6)
    assert tested.is_explained.any() == joined


def family(group, rest_ns):
    """Return a family that explains some ranks, one place each; a rest of None: it does not."""
    rest = np.array([np.nan if own is None else own for own in rest_ns], dtype=np.float64)
    group = np.array(group)
    return evidence.Tested(group, group, np.ones(len(group), dtype=bool), rest, np.isfinite(rest))


def test_all_members_of_a_group_tell_together_how_well_it_fits():
    """Ranks that fit a smaller group by chance would wait twice, and the replay would be refused."""
    pairs = family([0, 0, 1, 1], [3e6, 1.5e6, 3e6, 3e6])
    all_of_them = family([0, 0, 0, 0], [3e6, 2.8e6, 3e6, 3e6])
    assert evidence.widest_of_the_best([pairs, all_of_them], RESOLUTION_NS).tolist() == [1, 1, 1, 1]


def test_a_smaller_group_that_fits_all_of_its_members_better_is_taken():
    """Ranks would be said to wait for ranks that they do not wait for."""
    pairs = family([0, 0, 1, 1], [1e6, 1e6, 1e6, 1e6])
    all_of_them = family([0, 0, 0, 0], [3e6, 3e6, 3e6, 3e6])
    assert evidence.widest_of_the_best([pairs, all_of_them], RESOLUTION_NS).tolist() == [0, 0, 0, 0]


def test_who_a_wider_group_does_not_explain_keeps_its_own():
    """A join of two stages alone would be lost beside one of all ranks."""
    pairs = family([0, 0, 1, 1], [None, None, 1e6, 1e6])
    all_of_them = family([0, 0, 0, 0], [1e6, 1e6, None, None])
    assert evidence.widest_of_the_best([pairs, all_of_them], RESOLUTION_NS).tolist() == [1, 1, 0, 0]


def test_a_wider_group_is_none_where_its_members_follow_smaller_ones():
    """Stages that each reduce their own gradients would wait for all ranks, and the replay would be refused."""
    stages = family([0, 0, 1, 1, 2, 2], [1e6, None, 1e6, 1e6, 1e6, 1e6])
    all_of_them = family([0, 0, 0, 0, 0, 0], [1e6, 1e6, 1e6, None, None, None])
    found = evidence.widest_of_the_best([stages, all_of_them], RESOLUTION_NS)
    assert found.tolist() == [0, -1, 0, 0, 0, 0]


def test_where_no_group_fits_all_of_its_members_best_one_is_taken_for_all_of_them():
    """Of two families that each fit other members by chance, a rank would wait in both."""
    pairs = family([0, 0, 1, 1], [1e6, 1e7, 1e6, 1e7])
    all_of_them = family([0, 0, 0, 0], [1.2e7, 1e6, 1e7, 1e6])
    assert evidence.widest_of_the_best([pairs, all_of_them], RESOLUTION_NS).tolist() == [0, 0, 0, 0]

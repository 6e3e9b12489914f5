"""Which groups of ranks wait for one another, where several explain the same."""

import numpy as np

from meshscope.analyze.explain.unrecorded_joins import evidence

RESOLUTION_NS = 10.0


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

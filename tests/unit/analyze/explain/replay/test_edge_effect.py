"""Effects of causes that are kept only where they are."""

import numpy as np

from meshscope.analyze.explain.replay.edge_effect import as_effects, edge_effect


def test_an_effect_is_added_where_it_is_and_nowhere_else():
    """Fails if an effect lands on another edge, or is lost."""
    weight = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    edge_effect([0.0, -7.0, 0.0, 8.0], first=1).add_to(weight)
    assert weight.tolist() == [1.0, 2.0, -4.0, 4.0, 13.0]


def test_a_part_counts_from_its_own_first_edge():
    """Fails if work and wires of an effect are separated at the wrong edge."""
    effect = edge_effect([5.0, 0.0, 6.0, 7.0, 0.0, 8.0])
    part = effect.part(2, 3)
    assert (part.edge.tolist(), part.ns.tolist()) == ([0, 1], [6.0, 7.0])
    assert effect.part(4, 1).is_nothing


def test_columns_of_a_matrix_are_effects():
    """Fails if a matrix of scenarios gives other effects than its columns alone."""
    first, second = as_effects(np.array([[0.0, 2.0], [3.0, 0.0]]))
    assert (first.edge.tolist(), first.ns.tolist()) == ([1], [3.0])
    assert (second.edge.tolist(), second.ns.tolist()) == ([0], [2.0])

"""What the replay engine keeps, on random graphs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.formulas.schedules.engine import build_graph

WEIGHTS = st.integers(0, 10**12)


@st.composite
def graphs(draw):
    """Return sources, targets (always a later node) and weights of a few edges."""
    count = draw(st.integers(2, 12))
    edges = draw(
        st.lists(
            st.tuples(st.integers(0, count - 2), st.integers(1, count - 1)).filter(
                lambda edge: edge[0] < edge[1]
            ),
            min_size=1,
            max_size=30,
        )
    )
    weights = draw(st.lists(WEIGHTS, min_size=len(edges), max_size=len(edges)))
    source, target = np.array(edges).T
    return count, source, target, np.array(weights, dtype=float)


def times(graph, weights=None, root=0.0):
    """Return the times of all nodes."""
    count, source, target, recorded = graph
    weights = recorded if weights is None else weights
    built = build_graph(source, target, np.full(count, root), np.zeros(count))
    return built.replay(weights, np.zeros((len(weights), 1)), np.ones((1, 1)))[:, 0]


def longest_paths(graph):
    """Return the same by the definition, node by node in order."""
    count, source, target, weights = graph
    found = np.zeros(count)
    for node in range(count):
        own = np.flatnonzero(target == node)
        if len(own):
            found[node] = max(found[source[edge]] + weights[edge] for edge in own)
    return found


@given(graphs())
def test_replay_is_the_longest_path(graph):
    """Levels or slices would be mixed up in some shape of graph."""
    assert times(graph).tolist() == longest_paths(graph).tolist()


@given(graphs(), st.data())
def test_a_longer_duration_makes_nothing_earlier(graph, data):
    """A repair could seem to cost time."""
    longer = graph[3].copy()
    longer[data.draw(st.integers(0, len(longer) - 1))] += data.draw(WEIGHTS)
    assert (times(graph, longer) >= times(graph)).all()


@given(graphs(), st.integers(0, 1000))
def test_scaling_durations_scales_times(graph, factor):
    """Times would not be in one unit."""
    assert np.allclose(times(graph, factor * graph[3]), factor * times(graph), rtol=1e-12)


@given(graphs(), st.integers(0, 10**12))
def test_moving_the_start_moves_everything(graph, shift):
    """The origin of a clock would enter a duration."""
    assert (times(graph, root=float(shift)) == times(graph) + shift).all()


@given(graphs(), st.randoms())
def test_the_order_of_edges_changes_nothing(graph, random):
    """The answer would depend on how events are listed."""
    count, source, target, weights = graph
    order = list(range(len(weights)))
    random.shuffle(order)
    turned = (count, source[order], target[order], weights[order])
    assert times(turned).tolist() == times(graph).tolist()

"""The replay with an offset for each node and lane."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.replay.offsets import MAX_COLUMNS, build_waves, replay_offsets
from meshscope.analyze.formulas.schedules.engine import build_graph


@st.composite
def graphs(draw):
    """Return a node count and edges to later nodes; some nodes wait for many others."""
    count = draw(st.integers(2, 3 * MAX_COLUMNS))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    return count, np.array(edges)


@given(graphs(), st.integers(1, 3), st.integers(0, 2**31))
def test_every_lane_is_the_longest_path(graph, lanes, seed):
    """Lanes would mix, or a dependency of a wide or narrow node would be lost."""
    count, edges = graph
    offsets = np.random.default_rng(seed).integers(-5, 100, (count, lanes)).astype(float)
    built = build_graph(edges[:, 0], edges[:, 1], np.zeros(count), np.zeros(count))
    times = offsets.copy()
    replay_offsets(build_waves(built), times)
    for lane in range(lanes):
        found = np.zeros(count)
        for node in range(count):
            before = edges[edges[:, 1] == node, 0]
            found[node] = offsets[node, lane] + (found[before].max() if len(before) else 0.0)
        assert found.tolist() == times[:, lane].tolist()

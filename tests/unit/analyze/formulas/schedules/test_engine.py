"""The replay engine on graphs of a few nodes, computed by hand."""

import numpy as np
import pytest

from meshscope.analyze.formulas.schedules.engine import build_graph

# 0 --3--> 1 --4--> 3,  0 --5--> 2 --1--> 3
SOURCE, TARGET = np.array([0, 1, 0, 2]), np.array([1, 3, 2, 3])
WEIGHT = np.array([3.0, 4.0, 5.0, 1.0])


def diamond(root_ns=0.0, offset_ns=(0, 0, 0, 0)):
    """Return the diamond graph above."""
    roots = np.array([root_ns, 0.0, 0.0, 0.0])
    return build_graph(SOURCE, TARGET, roots, np.array(offset_ns, dtype=float))


def replay(graph, weight=WEIGHT, effects=None, keep=None):
    """Return node times of one lane, or of the lanes of ``keep``."""
    effects = np.zeros((len(weight), 1)) if effects is None else effects
    keep = np.ones((effects.shape[1], 1)) if keep is None else keep
    return graph.replay(weight, effects, keep)


def test_a_node_ends_at_its_latest_dependency():
    """The longest path would not be the makespan."""
    assert replay(diamond())[:, 0].tolist() == [0, 3, 5, 7]
    assert replay(diamond(root_ns=10.0))[:, 0].tolist() == [10, 13, 15, 17]


def test_offsets_move_a_node_and_all_after_it():
    """What a wait lasted beyond the model would be lost."""
    assert replay(diamond(offset_ns=(0, 2, 0, -1)))[:, 0].tolist() == [0, 5, 5, 8]


def test_lanes_keep_their_own_causes():
    """One scenario would leak into another."""
    effects = np.array([[10.0, 0.0], [0.0, 0.0], [0.0, 20.0], [0.0, 0.0]])
    keep = np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.5]])
    times = replay(diamond(), effects=effects, keep=keep)
    assert times[3].tolist() == [7, 17, 26, 17]


def test_edges_in_any_order_give_the_same_times():
    """The answer would depend on how the builder lists its edges."""
    order = np.array([3, 0, 2, 1])
    graph = build_graph(SOURCE[order], TARGET[order], np.zeros(4), np.zeros(4))
    assert replay(graph, WEIGHT[order])[:, 0].tolist() == [0, 3, 5, 7]


def test_a_cycle_is_refused_with_its_size():
    """Clocks that contradict each other would loop forever or give nonsense."""
    with pytest.raises(ValueError, match="2 of 3 nodes"):
        build_graph(np.array([0, 1, 2]), np.array([1, 2, 1]), np.zeros(3), np.zeros(3))


def test_nodes_without_edges_keep_their_own_times():
    """A rank that does nothing would crash the replay."""
    graph = build_graph(
        np.empty(0, np.int64), np.empty(0, np.int64), np.array([4.0, 6.0]), np.zeros(2)
    )
    assert replay(graph, np.empty(0))[:, 0].tolist() == [4, 6]


def test_blocks_in_which_each_target_is_once_need_no_sort():
    """Fails when edges of a block stand at another place than the sort of all would give them."""
    random = np.random.default_rng(2)
    nodes, several = 60, 40
    target = random.integers(30, nodes, several)
    blocks = [random.permutation(np.arange(20, nodes))[:25] for _ in range(2)]
    target = np.concatenate([target, *blocks])
    source = random.integers(0, 20, len(target))
    graph = build_graph(source, target, np.zeros(nodes), np.zeros(nodes))
    same = build_graph(source, target, np.zeros(nodes), np.zeros(nodes), (several, several + 25))
    assert (same.edge == graph.edge).all()
    assert (source[graph.edge] == same.source).all()
    assert (target[graph.edge] == same.target).all()
    assert (np.diff(graph.edge[graph.target == 40]) > 0).all()

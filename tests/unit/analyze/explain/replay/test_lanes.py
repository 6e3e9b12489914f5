"""Replays in chunks and with few held times, against the plain replay of the same graph."""

from types import SimpleNamespace

import numpy as np
import pytest

from meshscope.analyze.explain.replay import lanes as module
from meshscope.analyze.explain.replay.effect_folding import as_effects
from meshscope.analyze.explain.replay.lanes import cause_weights, lane_replay, level_places
from meshscope.analyze.formulas.schedules.engine import build_graph

LANES, CAUSES = 5, 3


def random_case(seed, nodes=60):
    """Return a random graph with weights: nodes depend on up to five earlier ones."""
    random = np.random.default_rng(seed)
    target = np.repeat(np.arange(4, nodes), random.integers(1, 6, nodes - 4))
    source = random.integers(0, target)
    offset = np.append(np.zeros(4), random.normal(0, 3, nodes - 4))
    graph = build_graph(source, target, np.zeros(nodes), offset)
    effects = random.normal(0, 20, (len(source), CAUSES))
    effects[random.random(effects.shape) < 0.6] = 0.0
    return random, graph, random.uniform(0, 100, len(source)), effects


def replayed(graph, base, effects, keep, roots, wanted):
    """Return the wanted times, and the waiting for the target of every third edge."""
    waited = np.arange(0, len(base), 3)
    target = np.empty(len(base), np.int64)
    target[graph.edge] = graph.target
    ends = np.full(len(waited), -1)
    contraction = SimpleNamespace(
        graph=graph, waited=waited, waited_for=target[waited], wait_ends=ends
    )
    causes = cause_weights(as_effects(effects[graph.edge]), len(base))
    places = level_places(graph)
    lanes = lane_replay(contraction, base[graph.edge], causes, wanted, places)
    return lanes, lanes.times(keep, roots)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 15])
@pytest.mark.parametrize("seed", range(4))
def test_it_gives_the_times_of_the_plain_replay(seed, chunk, monkeypatch):
    """Fails if a time is overwritten while a later node needs it, or a chunk mixes up nodes."""
    monkeypatch.setattr(module, "CHUNK_VALUES", chunk * LANES)
    random, graph, base, effects = random_case(seed)
    keep = random.integers(0, 2, (CAUSES, LANES)).astype(float)
    roots = random.uniform(0, 50, (len(graph.roots), LANES))
    wanted = random.integers(0, graph.node_count, 9)
    _, found = replayed(graph, base, effects, keep, roots, wanted)
    plain = graph.replay(base, effects, keep, roots)
    assert np.allclose(found.nodes, plain[wanted], rtol=1e-12)
    order = np.argsort(graph.edge)
    source, target = graph.source[order], graph.target[order]
    arrived = plain[source] + base[:, None] + effects @ keep
    gap = np.clip(plain[target] - arrived, 0, None)[::3]
    assert np.allclose(found.waiting_ns, gap.sum(axis=0), rtol=1e-12)


def test_a_long_chain_needs_few_places():
    """Fails if the times of all nodes are held, which at 16,384 ranks is gigabytes a block."""
    count = 1000
    chain = np.arange(count)
    graph = build_graph(chain[:-1], chain[1:], np.zeros(count), np.zeros(count))
    effects, keep = np.zeros((count - 1, 1)), np.ones((1, 1))
    lanes, found = replayed(
        graph, np.ones(count - 1), effects, keep, np.zeros((1, 1)), np.array([count - 1])
    )
    assert found.nodes.tolist() == [[count - 1.0]]
    assert lanes.slots <= 3


def test_a_graph_without_edges_keeps_its_roots():
    """Fails if a program in which nobody meets anybody cannot be replayed."""
    graph = build_graph(np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(2), np.zeros(2))
    nothing = np.zeros((0, 1))
    _, found = replayed(
        graph, np.empty(0), nothing, np.ones((1, 1)), np.array([[4.0], [6.0]]), np.array([1, 0])
    )
    assert found.nodes.tolist() == [[6.0], [4.0]]
    assert found.waiting_ns.tolist() == [0.0]

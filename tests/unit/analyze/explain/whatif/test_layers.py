"""The present layers of the stages, and what other ones cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.whatif.changes import Change
from meshscope.analyze.explain.whatif.layers import inferred_layers, moved_costs, stage_costs
from meshscope.probe.schema.errors import ConfigError

splits = st.lists(st.integers(1, 12), min_size=2, max_size=8)


def reported(cost, total):
    """Return the inferred layers as a list."""
    found = inferred_layers(np.array(cost, float), total)
    return None if found is None else found.tolist()


@pytest.mark.parametrize(
    ("cost", "total", "layers"),
    [
        ([8, 8, 8, 8], 32, [8, 8, 8, 8]),
        ([9, 8, 8, 7], 32, [9, 8, 8, 7]),
        ([8, 8, 8, 11], 32, [8, 8, 8, 8]),
        ([8.4, 8, 8, 11], 32, [8, 8, 8, 8]),
        ([9, 7], 16, [9, 7]),
        ([12, 8, 8, 8], 36, [12, 8, 8, 8]),
        ([6, 5, 5], 16, [6, 5, 5]),
        ([5.05, 6, 6.02, 6, 5], 28, [5, 6, 6, 6, 5]),
        ([8, 11], 16, [8, 8]),
        ([8.1, 7.9, 8.05, 8], 32, [8, 8, 8, 8]),
    ],
)
def test_layers_are_judged_by_what_stages_cost(cost, total, layers):
    """Fails when an uneven split is taken for an even one, or a heavy head for layers."""
    assert reported(cost, total) == layers


@pytest.mark.parametrize("cost", [[9, 8, 8, 7.5], [8, 5.5, 4.7, 8], [10, 8, 8, 8]])
def test_costs_that_fit_no_layers_are_not_guessed(cost):
    """Fails when a split is made up for stages whose costs are no multiples of a layer."""
    assert reported(cost, 32) is None
    change = Change("layers", "9,8,8,7", is_fix=False)
    with pytest.raises(ConfigError, match="how many layers") as caught:
        stage_costs(np.array([cost], float), 4, change, 32)
    assert "layers=8,8,8,8->" in str(caught.value)


@given(splits, st.floats(0.1, 100))
def test_a_judgement_has_the_layers_of_the_model(layers, layer_ns):
    """Fails when layers are lost or made by the judgement, or a stage would have none."""
    found = reported(np.array(layers) * layer_ns, sum(layers))
    if found is not None:
        assert sum(found) == sum(layers)
        assert min(found) > 0


@given(splits, st.floats(0, 20), st.floats(0, 20))
def test_layers_that_stay_change_no_cost(layers, embedding, head):
    """Fails when stating the present split as the wanted one changes the step."""
    cost = np.array([layers, 2 * np.array(layers)], float)
    cost[:, 0] += embedding
    cost[:, -1] += head
    now = np.array(layers, float)
    assert moved_costs(cost, now, now) == pytest.approx(cost)


@given(splits, st.integers(2, 16), st.floats(0, 20))
def test_other_stages_have_the_same_work_together(layers, stages, extra):
    """Fails when work appears or vanishes because the model is cut elsewhere."""
    cost = np.array([layers], float)
    cost[:, len(layers) // 2] += extra
    now = np.array(layers, float)
    then = np.full(stages, now.sum() / stages)
    assert moved_costs(cost, now, then).sum() == pytest.approx(cost.sum())


def test_embedding_and_head_stay_at_the_ends():
    """Fails when layers of a heavy stage are moved together with its head."""
    cost = np.array([[9.0, 8, 8, 12]])
    moved = moved_costs(cost, np.full(4, 8.0), np.array([9.0, 9, 9, 5]))
    assert moved.tolist() == [[10, 9, 9, 9]]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("8,8,8->8,8,8,8", "does not fit"),
        ("9,8,8,6->8,8,8,8", "does not fit"),
        ("9,8,8,7->", "is not valid"),
        ("->8,8,8,8", "is not valid"),
        ("8,8,8,0", "does not fit"),
    ],
)
def test_a_stated_split_that_cannot_be_is_refused(value, said):
    """Fails when a slip in the stated layers is answered with a number."""
    with pytest.raises(ConfigError, match=said):
        stage_costs(np.full((3, 4), 8.0), 4, Change("layers", value, is_fix=False), 32)


def test_a_stated_split_needs_as_many_layers_on_both_sides():
    """Fails when layers vanish where the model's own number is not known."""
    with pytest.raises(ConfigError, match="16 layers now and 17 then"):
        stage_costs(np.full((3, 2), 8.0), 2, Change("layers", "8,8->8,9", is_fix=False), None)

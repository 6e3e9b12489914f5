"""A group that nothing can be compared with is slow only against its own steps."""

import numpy as np
import pytest
from tests.unit.analyze.explain.causes.test_degraded import STEPS, even, transfers

from meshscope.analyze.explain.causes.degraded import degraded_places
from meshscope.analyze.explain.causes.without_peers import slow_kind


def blocks(step):
    """Return the factor of a link that is bad in every other block of three steps."""
    return 8.0 if step // 3 % 2 else 1.0


def test_a_lone_group_that_is_slow_in_blocks_is_named():
    """The only data-parallel group of a job could be as slow as it likes."""
    (place,) = degraded_places(transfers({"0": blocks}))
    slow = [step for step in range(STEPS) if blocks(step) > 1]
    assert place.is_alone
    assert place.step_frac == len(slow) / STEPS
    assert place.ratio == pytest.approx(8, rel=0.1)
    assert (int(place.events.sum()), int(place.like.sum())) == (
        2 * len(slow),
        2 * STEPS - 2 * len(slow),
    )


def test_a_lone_size_beside_others_is_alone_too():
    """Where the ends of the other groups' large transfers were not seen, nothing would be said."""
    frame = transfers({"0": blocks, "1": even}, sizes={"0": 10_000, "1": 10})
    assert [(p.where["group_id"], p.is_alone) for p in degraded_places(frame)] == [("0", True)]


def test_a_lone_group_that_is_always_the_same_is_not_slow():
    """Any single group would be called slow against nothing."""
    assert degraded_places(transfers({"0": lambda step: 9.0})) == []


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("cv", [0.3, 0.7, 1.0])
def test_noise_has_no_two_kinds(cv):
    """A busy machine would have a bad link, where one group is all there is."""
    found = [
        seed for seed in range(200) if degraded_places(transfers({"0": even}, seed=seed, cv=cv))
    ]
    assert len(found) <= 2


def test_slow_steps_that_others_have_too_blame_nobody():
    """A network that is busy in half of the steps would be the fault of one group."""
    assert degraded_places(transfers({"0": blocks, "1": blocks})) == []


def test_few_slow_steps_are_enough_where_nothing_lies_between():
    """A link that was slow in four of eleven steps, a tenth of the step, would have no place."""
    factors = {"0": even, "1": lambda step: 100.0 if step in (2, 4, 6, 8) else 1.0}
    (place,) = degraded_places(transfers(factors, steps=11))
    assert (place.where["group_id"], place.is_alone) == ("1", False)
    assert place.step_frac == pytest.approx(4 / 11)


@pytest.mark.parametrize("values", [[1.0] * 20, [0.0] * 10 + [5.0] * 10, [1.0, 9.0] * 3])
def test_what_cannot_be_two_kinds_is_none(values):
    """Equal, immediate or few steps would divide by zero, or be split anyhow."""
    assert slow_kind(np.array(values)) is None

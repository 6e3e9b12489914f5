"""Orders that send more across hosts than was recorded have no price without the speed of the ports."""

import numpy as np
import pytest
from msgspec.structs import replace

from meshscope.analyze.explain.placement.crossing import Pattern
from meshscope.analyze.explain.placement.estimates import NoPrice, estimated_gains
from meshscope.analyze.explain.placement.traffic import Traffic
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis

HOSTS = np.repeat([0, 1], 4)
LAYOUT = ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp")
"""Four tensor groups cross; the replicas of each lie on one host."""


def one(axis, sent, wire, train):
    """Return traffic that is exposed as a whole."""
    return Traffic(
        axis=axis,
        pattern=Pattern.RING,
        sent_bytes=sent,
        wire_ns=wire,
        exposed_ns=wire,
        train_bytes=train,
    )


def test_fewer_bytes_in_longer_trains_have_no_price():
    """Fails when the rate of short messages that a buffer swallows is taken for long ones, and a slower order proposed."""
    traffic = [one(Axis.TP, 1000, 4000, train=10), one(Axis.DP, 100, 10, train=100)]
    found = estimated_gains(LAYOUT, HOSTS, traffic)
    assert max(estimate.gain_ns for estimate in found.priced.values()) == 0
    ((gain, ratios, why),) = found.unpriced.values()
    assert why is NoPrice.PORT_SPEED
    # At most: tensor groups at 10 bytes/ns inside, and the replicas no slower outside.
    assert gain == pytest.approx(4000 - 100)
    assert ratios[Axis.DP, Pattern.RING] == 1.0


def test_more_bytes_in_a_step_have_no_price():
    """Fails when a port is taken to carry more than it did, at the same rate."""
    # Across: 4 x 100 bytes now, 2 x 1000 with the replicas outside.
    traffic = [one(Axis.TP, 100, 4000, train=10), one(Axis.DP, 1000, 10, train=10)]
    found = estimated_gains(LAYOUT, HOSTS, traffic)
    assert {estimate.no_price for estimate in found.unpriced.values()} == {NoPrice.PORT_SPEED}
    assert estimated_gains(LAYOUT, HOSTS, traffic, 1.0).unpriced == {}


def test_within_what_was_recorded_orders_have_a_price():
    """Fails when an order that sends less across hosts, in messages as short, loses its price."""
    # 4 x 10 bytes in one go now, 2 x 20 with the replicas outside.
    traffic = [one(Axis.TP, 1000, 4000, train=10), one(Axis.DP, 100, 10, train=20)]
    found = estimated_gains(LAYOUT, HOSTS, traffic)
    assert found.unpriced == {}
    assert max(estimate.gain_ns for estimate in found.priced.values()) == pytest.approx(
        (4000 - 100) + (10 - 200)
    )


def test_the_rate_is_that_of_trains_as_long():
    """Fails when an axis that moves out gets the rate of short messages, though long ones crossed hosts more slowly."""
    layout = ParallelLayout(tp=2, pp=2, dp=2, order="tp-dp-pp-cp")
    chain = replace(one(Axis.PP, 100, 10, train=20), pattern=Pattern.CHAIN)
    short, long = one(Axis.TP, 1000, 400, train=10), one(Axis.DP, 1000, 8000, train=100)
    hosts = np.repeat([0, 1, 2, 3], 2)
    found = estimated_gains(layout, hosts, [short, long, chain]).priced
    moved = [estimate.ratios[Axis.PP, Pattern.CHAIN] for estimate in found.values()]
    # 2 x 20 bytes in one go are more than the 2 x 10 of tensor groups: 200 bytes at 2 x 1000 / 8000.
    assert max(moved) == pytest.approx(800 / 10)

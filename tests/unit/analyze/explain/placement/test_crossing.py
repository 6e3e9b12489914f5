"""Bytes that leave hosts, against counts done by hand."""

import numpy as np
import pytest

from meshscope.analyze.explain.placement.crossing import Pattern, exits, groups_of, ring_turns
from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout
from meshscope.probe.schema.terms import Axis

TWO_HOSTS = np.repeat([0, 1], 4)


@pytest.mark.parametrize("order", ["pp-dp-cp-tp", "tp-pp-dp-cp", "dp-pp-cp-tp", "cp-tp-dp-pp"])
def test_groups_are_those_of_the_layout(order):
    """Fails when the groups by array differ from those by coordinates, in any order."""
    layout = ParallelLayout(tp=2, pp=3, dp=2, cp=2, order=order)
    for axis in MESH_AXES:
        ours = sorted(map(tuple, groups_of(layout, Axis(axis)).tolist()))
        assert ours == sorted(layout.groups(axis))


@pytest.mark.parametrize(
    ("layout", "axis", "pattern", "left"),
    [
        # Four pairs, each over both hosts: each leaves each host once.
        (ParallelLayout(tp=2, dp=4, order="tp-pp-dp-cp"), Axis.TP, Pattern.RING, [4, 4]),
        (ParallelLayout(tp=2, dp=4), Axis.TP, Pattern.RING, [0, 0]),
        # Two groups of four, half of each on either host: one exit a group and host.
        (ParallelLayout(tp=2, dp=4), Axis.DP, Pattern.RING, [2, 2]),
        # Four members here send to four there, of seven others.
        (ParallelLayout(dp=8, ep=8), Axis.EP, Pattern.EXCHANGE, [16 / 7, 16 / 7]),
        # Rings 0 1 2 ... 7: one edge out of each host.
        (ParallelLayout(cp=8), Axis.CP, Pattern.FORWARD, [1, 1]),
        # Two stages: all of a stage goes to the other one.
        (ParallelLayout(pp=2, tp=4), Axis.PP, Pattern.CHAIN, [4, 4]),
        # A chain of eight: 14 directed borders share 8 v, one each way crosses.
        (ParallelLayout(pp=8), Axis.PP, Pattern.CHAIN, [8 / 14, 8 / 14]),
        # With chunks it closes to a loop: 16 borders, two leave each host.
        (ParallelLayout(pp=8, vpp=2), Axis.PP, Pattern.CHAIN, [1, 1]),
    ],
)
def test_bytes_that_leave(layout, axis, pattern, left):
    """Fails when a byte is counted twice, or one that stays counts."""
    assert exits(layout, TWO_HOSTS, axis, pattern) == pytest.approx(left)


def test_ring_that_returns():
    """Fails when a ring that alternates between hosts passes for one that goes host by host."""
    layout = ParallelLayout(cp=8)
    assert ring_turns(layout, TWO_HOSTS, Axis.CP) == 0
    assert ring_turns(layout, np.array([0, 1] * 4), Axis.CP) == 6

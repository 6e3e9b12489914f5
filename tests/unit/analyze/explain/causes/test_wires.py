"""Transfers that are compared with their like."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.shared_links import over_one_link
from tests.synthetic import MS, Job, capture_of

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.causes.one_port import SlowPort
from meshscope.analyze.explain.causes.steady_links import steady_links
from meshscope.analyze.explain.causes.wires import between_ranks, with_steady_links
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

LAYOUT = ParallelLayout(dp=4)
STEPS = 12


def links(*reductions):
    """Return the findings of slow links of a job with these reductions a step: group and wire, ms."""
    program = []
    for step in range(STEPS):
        program.append(("work", 20 * MS, step, "forward", 0, 0))
        program += [
            ("collective", step, group, "dp", "all_reduce", 1 << 20, int(wire_ms * MS))
            for group, wire_ms in reductions
        ]
        program.append(("end", step, 4096))
    member_of = [[op for op in program if op[0] != "collective" or r in op[2][1]] for r in range(4)]
    trace = capture_of(Job(layout=LAYOUT, microbatches=1), member_of)
    groups = [
        {"group_id": name, "axis": "dp", "ranks": list(ranks)}
        for name, ranks in dict(group for group, _ in reductions).items()
    ]
    table = TABLES["group"].conform(pa.Table.from_pylist(groups))
    result = diagnose(replace(trace, tables={**trace.tables, "group": table}))
    return [found for found in result.findings if found.kind == "slow_link"]


@pytest.mark.parametrize("again", [(0, 1), (1, 0)])
def test_two_groups_of_the_same_members_are_no_two_links(again):
    """Fails when a job that makes a second group for its statistics is told to check its cables."""
    assert not links((("gradients", (0, 1)), 2.0), (("statistics", again), 5.0))


def test_groups_of_other_members_are_compared():
    """Fails when links of different ranks pass for one, and a bad one among them goes unseen."""
    (found,) = links((("left", (0, 1)), 2.0), (("right", (2, 3)), 5.0))
    assert found.where["group_id"] == "right"


def test_a_link_has_the_name_of_its_busiest_group():
    """Fails when a finding names a group that is hardly used, because it was made first."""
    right = ("right", (2, 3))
    (found,) = links((("a", (2, 3)), 5.0), (right, 5.0), (right, 5.0), (("left", (0, 1)), 2.0))
    assert found.where["group_id"] == "right"


FAST = 1.25e9


@pytest.mark.parametrize("stated", [FAST, None], ids=["stated", "unknown"])
def test_a_port_has_the_time_of_its_own_link_where_that_is_known(stated):
    """Fails when the most that a link of unknown speed may cost is part of the certain price of its port."""
    trace = over_one_link(LAYOUT, FAST / 10, seed=0, per_host=2, stated=stated)
    frame = between_ranks(communication_events(trace, step_windows(trace)).frame, trace)
    rest = 0.5 * frame["wire_ns"].fillna(0.0).to_numpy()
    (link,) = steady_links(frame, trace, rest)
    assert link.excess_frac > 0
    nothing = np.zeros(len(frame), bool)
    port = SlowPort(link.where, (link.where["host"],), "out", (), nothing, nothing)
    given = [(port, np.zeros(len(frame)))]
    ((_, own),), steady, left = with_steady_links(frame, trace, given, rest)
    assert not steady
    assert not given[0][1].any(), "what was given is changed"
    assert own[link.events].all() == (stated is not None)
    assert own.any() == (stated is not None)
    assert left[link.events].any() == (stated is None)
    _, ((alone, _),), _ = with_steady_links(frame, trace, [], rest)
    assert alone.where == link.where

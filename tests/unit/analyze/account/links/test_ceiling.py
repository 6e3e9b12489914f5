"""Bandwidth of groups beside the speed of ports, and the matrix of pairs."""

from dataclasses import replace

import pandas as pd
import pytest
from tests.tables import trace_of

from meshscope.analyze.account.links.ceiling import group_bandwidths
from meshscope.analyze.output.json.bandwidth import group_rows, pair_matrix
from meshscope.analyze.tables.trace import Card, Machine


def rows(speeds=(1e9, 1e9), machines=()):
    """Return the bandwidths of one group over two hosts and one inside a host."""
    trace = trace_of(
        group=[
            {"group_id": "across", "axis": "dp", "ranks": [0, 2]},
            {"group_id": "inside", "axis": "dp", "ranks": [0, 1]},
        ],
        link_sample=[
            {"host": host, "time_ns": 0, "port": port, "speed_bytes_per_s": speed}
            for host, speed in zip("ab", speeds, strict=True)
            for port in ("p0", "p1")
        ],
    )
    trace = replace(trace, clocks={0: "a", 1: "a", 2: "b"}, machines=machines)
    table = pd.DataFrame(
        {
            "group_id": ["across"] * 3 + ["inside"] * 3,
            "axis": "dp",
            "kind": "all_reduce",
            "size_bytes": 3 << 20,
            "bus_bandwidth_bytes_per_s": [1e9, 1e9, 1e9, 4e9, 4e9, None],
        }
    )
    return {row["group_id"]: row for row in group_rows(group_bandwidths(trace, table))}


def test_a_group_across_hosts_has_the_ports_as_ceiling():
    """Fails when the ceiling is not what the slower host's two ports carry, or is made up inside."""
    found = rows((1e9, 0.75e9))
    assert found["across"]["ceiling_bytes_per_s"] == 1.5e9
    assert found["across"]["of_ceiling_frac"] == pytest.approx(2 / 3)
    assert found["across"]["of_like_frac"] == pytest.approx(0.25)
    assert (found["inside"]["ceiling_bytes_per_s"], found["inside"]["count"]) == (None, 2)
    assert found["inside"]["size_from_bytes"] == 2 << 20


def test_a_stated_card_is_the_ceiling():
    """Fails when the speed in a topology file is no ceiling, or ports that are not the job's are added to it."""
    machines = tuple(
        Machine(
            name=f"node{at}",
            ranks=ranks,
            cards=(Card(name="fast", socket=None, bytes_per_s=speed, ranks=()),),
        )
        for at, (ranks, speed) in enumerate([((0, 1), 4e9), ((2,), 5e9)])
    )
    assert rows((None, None), machines)["across"]["ceiling_bytes_per_s"] == 4e9
    assert rows((1e9, 1e9), machines)["across"]["ceiling_bytes_per_s"] == 4e9
    assert rows((1e9, 1e9), machines[:1])["across"]["ceiling_bytes_per_s"] == 2e9


def test_no_share_of_a_ceiling_that_is_exceeded_or_unknown():
    """Fails when a group is said to run above its link, or on a link of unknown speed."""
    assert rows((0.25e9, 0.25e9))["across"]["of_ceiling_frac"] is None
    assert rows((None, 1e9))["across"]["ceiling_bytes_per_s"] is None


def test_matrix_adds_the_groups_of_a_pair():
    """Fails when a pair in two groups loses bytes, or shows the speed of the smaller one."""
    pair = {"source": 0, "target": 4}
    found = pair_matrix(
        [
            {**pair, "total_bytes": 10, "bus_bandwidth_p50_bytes_per_s": 5.0},
            {**pair, "total_bytes": 30, "bus_bandwidth_p50_bytes_per_s": 7.0},
        ]
    )
    assert found == {
        "ranks": [0, 4],
        "total_bytes": [[None, 40], [None, None]],
        "bus_bandwidth_bytes_per_s": [[None, 7.0], [None, None]],
    }

"""The port that explains several slow links."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.explain.causes.common_port import common_ports, shared_rates

A, B, C = range(3)
STEPS = 5


def sums(ports, start, end, size=100.0, first=0):
    """Return a collective a step over ports, at these times of the step."""
    rows = [
        {"join": first + step, "port": port, "source": -1}
        | {"step": step, "moved_bytes": size}
        | {"end_ns": step * 1000 + end, "wire_ns": end - start}
        for step in range(STEPS)
        for port in ports
    ]
    return pd.DataFrame(rows)


def sends(source, port, start, end, size=100.0, first=50):
    """Return a message a step from one port to another."""
    return sums([port], start, end, size, first).assign(source=source)


def found(*links, more=()):
    """Return what slow links have in common, where others cross as well."""
    return common_ports(links, pd.concat([*links, *more]))


def test_the_port_in_common_is_found():
    """Fails when links of two axes that cross one port of one host are two links."""
    (one,) = found(sums([A, B], 0, 100), sums([B, C], 200, 300, first=20))
    assert (one.links, one.ports, one.way) == ((0, 1), (B,), "")


def test_a_message_names_the_way():
    """Fails when a host that sends slowly is said to receive slowly too."""
    (one,) = found(sums([B, C], 0, 100), sends(B, A, 200, 300))
    assert (one.links, one.ports, one.way) == ((0, 1), (B,), "out")
    assert not found(sums([B, C], 0, 100), sends(C, A, 200, 250))
    (one,) = found(sends(B, A, 0, 100), sends(B, C, 200, 300, first=80))
    assert (one.ports, one.way) == ((B,), "out")
    assert not found(sends(B, A, 0, 100), sends(C, B, 200, 300, first=80))


def test_what_overlaps_shares_the_rate_of_the_port():
    """Fails when two axes at once seem half as fast as one alone, and not to be bound by the same port."""
    # 100 bytes alone and 300 at once with 100 of the other: a byte a ns in all.
    long, short = sums([A, B], 0, 400, 300.0), sums([B, C], 200, 400, 100.0, first=20)
    assert shared_rates([long, short]) == pytest.approx([2.0, 2.0])
    at_b = [one[one["port"] == B] for one in (long, short)]
    assert shared_rates(at_b) == pytest.approx([1.0, 1.0])
    assert [one.ports for one in found(long, short)] == [(B,)]


def test_other_rates_are_those_of_other_ports():
    """Fails when a link that is limited elsewhere is joined with one that runs twice as fast through the same port."""
    assert not found(sums([A, B], 0, 100), sums([B, C], 200, 250, first=20))


def test_pairs_of_three_hosts_have_no_port_in_common():
    """Fails when one of three hosts that are all slow is blamed for the others."""
    links = (
        sums([A, B], 0, 100),
        sums([B, C], 200, 300, first=20),
        sums([A, C], 400, 500, first=40),
    )
    assert not found(*links)


def test_a_port_that_is_fast_for_most_of_its_bytes_is_not_slow():
    """Fails when a port is blamed through which most bytes pass fast."""
    links = sums([A, B], 0, 100), sums([B, C], 200, 300, first=20)
    assert found(*links)
    assert not found(*links, more=[sums([B, C], 400, 410, 300.0, first=40)])


def test_the_same_hosts_have_no_port_of_one_of_them():
    """Fails when one of several hosts is named where nothing tells which of them is slow."""
    (one,) = found(sums([A, B, C], 0, 100), sums([A, B, C], 200, 300, first=20))
    assert one.ports == (A, B, C)


def test_members_of_one_operation_are_one_transfer():
    """Fails when a host with two members of a group seems to send twice at a time."""
    one = sums([A, B], 0, 100)
    twice = pd.concat([one, one]).assign(moved_bytes=50.0)
    at_a = [rows[rows["port"] == A] for rows in (one, twice)]
    assert [float(shared_rates([rows])[0]) for rows in at_a] == pytest.approx([1.0, 1.0])
    assert np.isfinite(shared_rates(at_a)).all()

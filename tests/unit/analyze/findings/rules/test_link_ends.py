"""The ends of a slow group: which host sends, and whether hosts that are as short of processors are fast."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.messages import of_code
from tests.synthetic import MS, Job, capture_of, programs, uniform

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.host_tables import HOST_TABLES
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES


def _slower(op, by_ns):
    """Return an operation, longer on the wire in one tensor group."""
    if op[0] == "collective" and op[2][0] == "tp-2":
        return (*op[:-1], op[-1] + by_ns)
    return op


def with_a_slow_group(loads, host_of, by_ns=30 * MS, early_ns=0):
    """Return the finding on a tensor group that takes longer than three others.

    Args:
        loads: Of the four processors of each host.
        host_of: The host of a rank.
        by_ns: How much longer.
        early_ns: By how much rank 3 of that group, 2 and 3, leaves earlier.
    """
    job = Job(layout=ParallelLayout(tp=2, dp=4), microbatches=2, steps=6)
    slower = [
        [_slower(op, by_ns) for op in own] for own in programs(job, uniform(10 * MS, 20 * MS))
    ]
    trace = capture_of(job, slower)
    rows = trace.tables["collective"].to_pylist()
    for row in rows:
        row["source"] = "host_blocking"
        row["wait_start_ns"], row["wait_end_ns"] = row["start_ns"], row["end_ns"]
        if row["rank"] == 3 and row["group_id"] == "tp-2":
            row["end_ns"] = row["wait_end_ns"] = row["end_ns"] - early_ns
    samples = [
        {"host": host, "time_ns": 0, "cpus": 4, "load_1m": load} for host, load in loads.items()
    ]
    tables = {
        **trace.tables,
        "collective": TABLES["collective"].conform(pa.Table.from_pylist(rows)),
        "host_sample": HOST_TABLES["host_sample"].conform(pa.Table.from_pylist(samples)),
    }
    clocks = {rank: host_of(rank) for rank in trace.ranks}
    findings = diagnose(replace(trace, tables=tables, clocks=clocks, _frames={})).findings
    return next(
        found
        for found in findings
        if found.kind == "slow_link" and found.where.get("group_id") == "tp-2"
    )


def of_pairs(rank):
    """Return a host for the even ranks of each two groups, and one for the odd ones."""
    return "abcd"[2 * (rank // 4) + rank % 2]


@pytest.mark.parametrize(
    ("loads", "by_ms", "is_excused"),
    [
        ({"a": 24.0, "b": 24.0, "c": 24.0, "d": 24.0}, 30, True),
        ({"a": 24.0, "b": 24.0, "c": 12.0, "d": 24.0}, 30, False),
        ({"a": 24.0, "b": 24.0, "c": 2.0, "d": 2.0}, 30, False),
        ({"a": 24.0, "b": 24.0, "c": 24.0, "d": 24.0}, 0.1, False),
    ],
    ids=["all as short", "one peer less short", "peers idle", "no slower than chance may make it"],
)
def test_a_shortage_that_fast_peers_have_too_does_not_explain_a_slow_link(loads, by_ms, is_excused):
    """Fails when a slow link is doubted for a shortage of processors under which its like are fast, or the doubt is lost."""
    found = with_a_slow_group(loads, of_pairs, int(by_ms * MS))
    assert (found.confidence >= 0.5) == is_excused
    assert bool(of_code(found.evidence, "crowded.like_too")) == is_excused
    assert bool(of_code(found.evidence, "crowded.moves_data")) == (not is_excused)
    assert str(found.remedy).startswith("Give the ranks enough CPUs") == (not is_excused)


def test_inside_a_host_the_shortage_stays_the_likelier_cause():
    """Fails when a group inside one host, which no link joins, is told to look at its cables first."""
    found = with_a_slow_group({"a": 24.0}, lambda _: "a")
    assert found.confidence < 0.5
    assert not of_code(found.evidence, "crowded.like_too")


def test_the_host_that_sends_a_slow_group_is_named():
    """Fails when a slow group between two hosts leaves it open which port to look at, though one leaves far earlier."""
    idle = dict.fromkeys("abcd", 1.0)
    found = with_a_slow_group(idle, of_pairs, early_ns=12 * MS)
    # Rank 3, on host b, has all that rank 2 sends; rank 2 still waits for what rank 3 sent.
    (way,) = of_code(found.evidence, "slow_link.way")
    assert (way["source"], way["target"]) == ("b", "a")
    assert way["late_ns"] == pytest.approx(12 * MS, rel=0.05)
    assert found.where["host"] == "b"
    assert "from host b to host a" in str(found.remedy)


def test_hosts_that_leave_together_name_no_sender():
    """Fails when a host is blamed for a slow group whose members end at one time."""
    found = with_a_slow_group(dict.fromkeys("abcd", 1.0), of_pairs)
    assert not of_code(found.evidence, "slow_link.way")
    assert "host" not in found.where

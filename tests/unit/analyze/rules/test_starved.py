"""Slow transfers on hosts that are short of processors."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.diagnosis import diagnose
from meshscope.probe.schema.host_tables import HOST_TABLES
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES


def with_a_slow_group(load, origin="host_blocking", sampled="a"):
    """Return the finding on a tensor group that takes 3 ms longer, on one host under some load.

    Args:
        load: Of the host that was sampled.
        origin: How the transfers were timed.
        sampled: The host; that of the ranks is ``a``.
    """
    job = Job(layout=ParallelLayout(tp=2, dp=4), microbatches=2, steps=6)
    trace = capture(job, uniform(10 * MS, 20 * MS))
    rows = trace.tables["collective"].to_pylist()
    for row in rows:
        row["source"] = origin
        if row["group_id"] == "tp-2":
            row["start_ns"] -= 3 * MS
            row["wait_start_ns"] -= 3 * MS
            row["issue_ns"] -= 3 * MS
    samples = [{"host": sampled, "time_ns": 0, "cpus": 4, "load_1m": load}]
    tables = {
        **trace.tables,
        "collective": TABLES["collective"].conform(pa.Table.from_pylist(rows)),
        "host_sample": HOST_TABLES["host_sample"].conform(pa.Table.from_pylist(samples)),
    }
    clocks = dict.fromkeys(trace.ranks, "a")
    findings = diagnose(replace(trace, tables=tables, clocks=clocks, _frames={})).findings
    return next(found for found in findings if found.kind == "slow_link")


@pytest.mark.parametrize(
    ("load", "origin", "starved"),
    [(24.0, "host_blocking", True), (4.0, "host_blocking", False), (24.0, "imported", False)],
)
def test_processors_that_are_short_are_likelier_than_a_wire(load, origin, starved):
    """Fails when a host with six tasks a processor is told to look at its cables first."""
    found = with_a_slow_group(load, origin)
    assert found.where["group_id"] == "tp-2"
    assert found.remedy.startswith("Give the ranks enough processors") == starved
    assert any("24 tasks to run on 4 processors" in line for line in found.evidence) == starved
    assert (found.confidence < 0.5) == starved


def test_a_host_that_was_not_sampled_is_not_called_short():
    """Fails when samples of other hosts alone end the diagnosis, or speak for this one."""
    found = with_a_slow_group(24.0, sampled="b")
    assert not any("tasks to run" in line for line in found.evidence)

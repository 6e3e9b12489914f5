"""Axes along which nothing was recorded: told with the remedy, and nobody is blamed for them."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.texts import texts

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.communication.unseen import unseen_axes
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

SLOW = Fault(kind=FaultKind.SLOW_RANK, rank=5, factor=1.3)


def job(**layout):
    """Return the capture of a job in which rank 5 is slow."""
    made = SyntheticJob(
        layout=ParallelLayout(**layout), steps=5, microbatches=4, jitter_cv=0.02, faults=(SLOW,)
    )
    return generate(made)[0]


def without(trace, *axes):
    """Return a capture that lacks all operations along these axes."""
    tables = {}
    for name in ("collective", "p2p"):
        table = trace.tables[name]
        is_left = pc.invert(pc.is_in(table["axis"].cast(pa.string()), pa.array(axes)))
        tables[name] = table.filter(is_left)
    return trace.with_tables(tables)


def axes_of(trace):
    """Return the axes that a capture does not show."""
    windows = step_windows(trace)
    return unseen_axes(trace, windows, communication_events(trace, windows))


def blamed(result):
    """Return the ranks that findings or causes call slow."""
    places = [one.where for one in (*result.findings, *result.causes)]
    return {rank for where in places for rank in (*where.get("ranks", ()), where.get("rank", -1))}


@pytest.mark.parametrize("axis", ["pp", "dp"])
def test_without_an_axis_the_victim_of_a_slow_rank_is_not_blamed(axis):
    """Fails when a rank that waits where nothing is seen is called slow, or the cost is made up."""
    result = diagnose(without(job(pp=2, dp=4), axis))
    (limit,) = [one for one in texts(result.limits) if one.startswith("Unseen communication")]
    size = {"pp": 2, "dp": 4}[axis]
    assert f"nothing was recorded along {axis} ({size} ranks)" in limit
    assert "meshscope doctor" in limit
    assert blamed(result) <= {5, -1}
    assert not result.causes
    assert result.metrics["exposed_comm_frac"] is None
    assert result.metrics["straggler_slowdown"] is None
    assert (result.bubble.measured_frac is None) == (axis == "pp")


@pytest.mark.parametrize("axes", [("tp",), ("tp", "pp", "dp")], ids=["tp", "all"])
def test_what_may_hide_in_passes_is_neither_computing_nor_blame(axes):
    """Fails when ranks that wait inside a pass for a slow one are called slow with it."""
    result = diagnose(without(job(tp=2, pp=2, dp=2), *axes))
    assert blamed(result) <= {-1}
    bars = {bar.name: bar.frac for bar in result.waterfall}
    assert bars["compute_or_communication"] > 0.5
    assert "forward" not in bars
    assert sum(bars.values()) == pytest.approx(1, abs=1e-9)


def test_a_whole_capture_lacks_nothing():
    """Fails when a healthy capture is told to be blind."""
    assert axes_of(job(tp=2, pp=2, dp=2)) == ()
    assert not any("Unseen" in limit for limit in texts(diagnose(job(pp=2, dp=4)).limits))


@pytest.mark.parametrize(
    ("ranks", "unseen"),
    [
        ([0, 1, 2, 3], ()),  # replicas and parts of the sequence: gradients
        ([0, 1], ("dp",)),  # one part of the mesh of gradients: the replicas are not in it
        ([0, 1, 2, 3, 4, 5, 6, 7], ("dp", "cp")),  # all ranks: a loss, or a barrier
    ],
)
def test_a_group_counts_for_the_axes_whose_work_it_does(ranks, unseen):
    """Fails when gradients over replicas and sequence at once are missed, or a barrier counts."""
    trace = without(job(pp=2, dp=2, cp=2), "dp", "cp")
    group = {"group_id": ["g"], "axis": ["other"], "ranks": [ranks]}
    rows = [
        {
            "rank": rank, "step": step, "group_id": "g", "axis": "other", "kind": "all_reduce",
            "seq": step, "size_bytes": 1, "dtype": "float32", "issue_ns": start, "start_ns": start,
            "end_ns": start + 10, "source": "imported", "event_id": 0,
        }
        for rank in ranks
        for step, start in trace.frame("step").query("rank == @rank")[["step", "start_ns"]].values
    ]  # fmt: skip
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    more = {
        "collective": TABLES["collective"].conform(pa.table(columns)),
        "group": TABLES["group"].conform(pa.table(group)),
    }
    assert axes_of(trace.with_tables(more)) == unseen


def test_without_a_layout_nothing_is_expected():
    """Fails when a capture whose mesh nobody knows is said to lack an axis."""
    assert axes_of(replace(without(job(pp=2, dp=4), "pp"), layout=None)) == ()

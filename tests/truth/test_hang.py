"""A hang with known culprits: a Megatron job of 16 ranks in which two were frozen."""

from collections import Counter

import pytest

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.account.hangs.hang import wait_graph
from meshscope.probe.schema.layout import ParallelLayout

pytestmark = pytest.mark.traces

FROZEN = [10, 15]
"""Ranks whose interpreter was locked, by the log of the fault injection."""


@pytest.fixture(scope="module")
def trace(traces_dir):
    """Return the dumps of the flight recorders."""
    return load_trace(traces_dir / "nvrx_fr_traces")


def test_the_frozen_ranks_are_named_and_no_other(trace):
    """The victims of a hang, which are all other ranks, would be blamed with the culprits."""
    findings = diagnose(trace).findings
    assert [finding.kind for finding in findings] == ["hang"]
    assert findings[0].where["ranks"] == FROZEN
    assert findings[0].severity == "critical"
    assert "Ranks 8, 9 and 11 waited for rank 10 in all_to_all 20947" in str(
        findings[0].evidence[0]
    )
    assert "Ranks 12, 13 and 14 waited for rank 15 in all_to_all 20947" in str(
        findings[0].evidence[1]
    )


def test_every_other_rank_stood_still(trace):
    """Ranks that wait through others would look as if they were at work."""
    graph = wait_graph(trace)
    assert sorted(set(range(16)) - set(graph.waiting)) == FROZEN
    assert not graph.ring
    assert not graph.stuck


def test_the_mesh_is_found_from_the_names_of_the_groups(trace):
    """Stages and replicas of the culprits would be unknown or wrong."""
    assert trace.layout == ParallelLayout(tp=2, dp=2, pp=4, ep=4)
    assert all(
        trace.layout.rank(tp=tp, dp=dp, pp=pp) == tp + 2 * dp + 4 * pp
        for tp in range(2)
        for dp in range(2)
        for pp in range(4)
    )


def test_groups_lie_along_the_axes_that_the_mesh_says(trace):
    """Traffic of experts or of whole stages would be counted as tensor-parallel."""
    groups = trace.frame("group")
    wide = groups[groups["ranks"].map(len) > 1]
    assert Counter(wide["axis"].astype(str)) == {"tp": 16, "dp": 8, "pp": 4, "ep": 8, "other": 13}
    assert {len(ranks) for ranks in wide.loc[wide["axis"] == "tp", "ranks"]} == {2}


@pytest.mark.parametrize(
    ("lost", "named", "suspected"),
    [([10], [15], [10]), ([10, 15], [], [10, 15]), ([3], FROZEN, []), ([0, 1, 2, 3], FROZEN, [])],
)
def test_missing_dumps_do_not_hide_the_hang(traces_dir, tmp_path, lost, named, suspected):
    """A frozen rank often makes no dump at all: it would be overlooked."""
    for rank in set(range(16)) - set(lost):
        source = traces_dir / "nvrx_fr_traces" / "lock_gil_2nd" / f"_dump_{rank}"
        (tmp_path / source.name).write_bytes(source.read_bytes())
    hangs = [f for f in diagnose(load_trace(tmp_path)).findings if f.kind == "hang"]
    assert [f.where["ranks"] for f in hangs if f.confidence > 0.9] == ([named] if named else [])
    assert [f.where["ranks"] for f in hangs if f.confidence < 0.9] == (
        [suspected] if suspected else []
    )

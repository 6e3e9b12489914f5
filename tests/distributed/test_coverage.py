"""Everything a trainer sends is recorded: counts against Kineto, ranks against each other."""

import json

import pandas as pd
import pytest
from tests.distributed import coverage_scenarios
from tests.distributed.forked_ranks import run_forked

from meshscope.probe.hooks.operators import NOT_COMMUNICATION, OPERATORS
from meshscope.probe.reader.run import read_run

pytestmark = pytest.mark.distributed

KINDS = {operator.name: str(operator.kind or operator.direction) for operator in OPERATORS}


@pytest.fixture(params=["before", "after"], ids=lambda when: f"attach-{when}-init", scope="module")
def job(request, tmp_path_factory):
    """Run all scenarios on two ranks; return the capture and Kineto's counts."""
    folder = tmp_path_factory.mktemp("coverage")
    arguments = (folder / "run", folder, request.param)
    run_forked(folder, coverage_scenarios.main, arguments, ranks=2)
    counts = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return read_run(folder / "run"), counts


def test_every_operation_is_recorded(job):
    """Fails when an operation that Kineto sees is missing from the capture, or counted twice."""
    capture, counts = job
    rows = _communication(capture)
    for rank, scenarios in enumerate(counts):
        for name, scenario in scenarios.items():
            expected = {
                operator: count
                for operator, count in scenario["calls"].items()
                if operator not in NOT_COMMUNICATION
            }
            own = rows[(rows["rank"] == rank) & (rows["step"] == scenario["step"])]
            assert own["kind"].value_counts().to_dict() == _by_kind(expected), (name, rank)
            assert expected, f"{name} did not communicate at all"


def test_ends_are_known_where_the_host_waits(job):
    """Fails when the probe loses the handle between the issue and the wait."""
    capture, counts = job
    rows = _communication(capture)
    for name, scenario in counts[0].items():
        ends = rows[rows["step"] == scenario["step"]]["end_ns"]
        assert ends.notna().all(), name


def test_members_of_a_collective_agree(job):
    """Fails when (group, seq) pairs different collectives on the two ranks."""
    rows = job[0].tables["collective"].to_pandas()
    pairs = rows.groupby(["group_id", "seq"], observed=True)
    assert (pairs.size() == 2).all()
    for column in ("kind", "size_bytes"):
        assert (pairs[column].nunique() == 1).all(), column


def test_each_send_has_its_receive(job):
    """Fails when sequence numbers of messages do not match a send with its receive."""
    rows = job[0].tables["p2p"].to_pandas()
    rows = rows[rows["peer"] >= 0]
    key = ["group_id", "seq", "size_bytes"]
    sends = rows[rows["direction"] == "send"][[*key, "rank", "peer"]]
    receives = rows[rows["direction"] == "recv"][[*key, "peer", "rank"]]
    receives = receives.set_axis([*key, "rank", "peer"], axis=1)
    matched = receives.merge(sends, on=[*key, "rank", "peer"], how="left", indicator=True)
    assert len(receives) > 20
    assert (matched["_merge"] == "both").all()


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero_bubble"])
def test_stage_spans_name_stage_chunk_and_microbatch(job, name):
    """Fails when a stage method's span is lost or put at the wrong place of the pipeline."""
    capture, counts = job
    spans = capture.tables["span"].to_pandas()
    spans = spans[spans["step"] == counts[0][name]["step"]]
    for rank in (0, 1):
        own = spans[(spans["rank"] == rank) & (spans["stage"] >= 0)]
        stages = {rank: 0} if name != "zero_bubble" else {rank: 0, rank + 2: 1}
        for stage, chunk in stages.items():
            found = own[own["stage"] == stage]
            assert set(found["chunk"]) == {chunk}
            kinds = {"forward", "backward"}
            if name == "zero_bubble":
                kinds = {"forward", "backward_input", "backward_weight"}
            assert {
                kind: set(rows["microbatch"]) for kind, rows in found.groupby("kind", observed=True)
            } == {kind: {0, 1, 2, 3} for kind in kinds}


def test_messages_of_a_pipeline_carry_their_microbatch(job):
    """Fails when a message cannot be given its microbatch."""
    capture, counts = job
    rows = capture.tables["p2p"].to_pandas()
    for name in ("gpipe", "1f1b"):
        own = rows[rows["step"] == counts[0][name]["step"]]
        assert sorted(own["microbatch"]) == sorted([0, 1, 2, 3] * 4)


def test_the_schedule_is_known(job):
    """Fails when the capture does not say which schedule ran with how many microbatches."""
    run = job[0].tables["run"].to_pylist()[0]
    assert (run["schedule"], run["microbatches"], run["world_size"]) == ("gpipe", 4, 2)
    assert run["capture_level"] == "collectives"


def _communication(capture):
    collectives = capture.tables["collective"].to_pandas()
    messages = capture.tables["p2p"].to_pandas().rename(columns={"direction": "kind"})
    columns = ["rank", "step", "kind", "end_ns"]
    both = pd.concat([collectives[columns].astype({"kind": str}),
                      messages[columns].astype({"kind": str})])  # fmt: skip
    return both.reset_index(drop=True)


def _by_kind(calls):
    counts = {}
    for operator, count in calls.items():
        counts[KINDS[operator]] = counts.get(KINDS[operator], 0) + count
    return counts

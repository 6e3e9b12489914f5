"""Real files of further formats, with the answers that were worked out from them by hand."""

import pytest
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.account.kernels.breakdown import device_breakdown
from meshscope.analyze.tables.classes import COMPUTE_CLASSES

pytestmark = pytest.mark.traces

WARM_UP = (1, 2)
"""Iterations that the hand-made figures leave out."""


@pytest.fixture(scope="module")
def pipeline(traces_dir):
    """Return a pipeline of eight stages, of which compute and memory were recorded."""
    return load_trace(traces_dir / "primus_pp" / "gpu8_layer64_gbs16" / "pp8")


@pytest.fixture(scope="module")
def pipeline_result(pipeline):
    """Return its diagnosis."""
    return diagnose(pipeline)


def test_mesh_and_step_time_of_the_pipeline(pipeline, pipeline_result):
    """The run would be taken for another one, or its step for that of a later stage."""
    assert (pipeline.layout.pp, pipeline.layout.world_size) == (8, 8)
    assert pipeline.run["microbatches"] == 16
    assert pipeline_result.run["schedule"] == "1f1b"
    steps = pipeline.frame("step")
    settled = steps[(steps["rank"] == 0) & ~steps["step"].isin(WARM_UP)]
    assert len(settled) == 18
    assert settled["dur_ns"].mean() / 1e6 == pytest.approx(3272, abs=0.5)


def test_idle_share_of_each_stage(pipeline_result):
    """The bubble of a stage would be misstated."""
    ledger = pipeline_result.ledger
    ledger = ledger[~ledger["step"].isin(WARM_UP)].groupby("rank").sum()
    idle = 1 - ledger[list(COMPUTE_CLASSES)].sum(axis=1) / ledger["step_ns"]
    known = [0.363, 0.371, 0.361, 0.361, 0.361, 0.356, 0.368, 0.305]
    assert idle.tolist() == pytest.approx(known, abs=1e-3)


def test_means_of_the_passes_by_stage(pipeline):
    """Forward and backward, or two stages, would be mixed up."""
    spans = pipeline.frame("span")
    spans = spans[~spans["step"].isin(WARM_UP)]
    mean = spans.groupby(["kind", "stage"], observed=True)["dur_ns"].mean() / 1e6
    forward = [59.0, 58.8, 59.7, 61.8, 60.7, 61.7, 60.0, 66.9]
    backward = [71.2, 69.7, 71.0, 68.8, 69.9, 70.0, 69.2, 75.1]
    assert mean["forward"].tolist() == pytest.approx(forward, abs=0.051)
    assert mean["backward"].tolist() == pytest.approx(backward, abs=0.06)
    assert set(spans.groupby(["rank", "step", "kind"], observed=True)["microbatch"].nunique()) == {
        16
    }


def test_memory_falls_along_the_pipeline(pipeline_result):
    """The stage that is nearly full would not be seen."""
    peaks = pipeline_result.memory.set_index("stage")["peak_bytes"] / 2**30
    known = [104.3, 95.6, 88.1, 80.3, 73.1, 65.9, 58.1, 52.2]
    assert peaks.astype(float).tolist() == pytest.approx(known, abs=0.051)
    found = {finding.kind: finding for finding in pipeline_result.findings}
    assert found["memory_imbalance"].where == {"stage": 0}


def test_the_heavy_stage_is_named_and_no_waiting_invented(pipeline_result):
    """The last stage would go unnoticed, or be given a cost that nobody measured."""
    found = {finding.kind: finding for finding in pipeline_result.findings}
    assert found["stage_imbalance"].where["stage"] == 7
    assert found["stage_imbalance"].cost_frac is None
    assert "36.3 % on stage 0" in str(found["pipeline_bubble"].evidence[0])
    bubble = pipeline_result.bubble
    assert bubble.measured_frac is None
    assert bubble.ideal_frac == pytest.approx(0.304, abs=5e-4)
    assert not pipeline_result.causes
    assert any("own time origin" in limit for limit in texts(pipeline_result.limits))


@pytest.fixture(scope="module")
def merged(traces_dir):
    """Return four ranks from the one file into which a tool has merged them."""
    return load_trace(traces_dir / "amd_hpctraining" / "merged_all_events.json.gz")


def test_a_merged_file_gives_what_the_files_of_the_ranks_give(traces_dir, merged):
    """Events of one rank would be joined with those of another."""
    split = load_trace(traces_dir / "amd_hpctraining" / "split")
    assert device_breakdown(merged).equals(device_breakdown(split))
    assert merged.ranks == split.ranks
    for name in ("step", "span", "collective", "name", "op"):
        assert merged.tables[name].equals(split.tables[name]), name
    left, right = (trace.frame("kernel").drop(columns="correlation") for trace in (merged, split))
    assert left.equals(right)


def test_waits_of_a_merged_file(merged):
    """The straggler of the four ranks would be another one."""
    table = diagnose(merged).stragglers.sort_values("rank")
    assert (table["wait_ns"] / 1e6).tolist() == pytest.approx([60.881, 35.953, 37.315, 0], abs=1e-3)
    assert table["arrived_last"].tolist() == [0, 0, 0, 15]


def test_waits_of_a_merged_file_of_collectives_alone(traces_dir):
    """A file without host events would be refused, or matched otherwise."""
    path = traces_dir / "amd_hpctraining" / "merged_nccl_only.json.gz"
    table = diagnose(load_trace(path)).stragglers.sort_values("rank")
    assert (table["wait_ns"] / 1e6).tolist() == pytest.approx([60.881, 35.953, 37.315, 0], abs=1e-3)

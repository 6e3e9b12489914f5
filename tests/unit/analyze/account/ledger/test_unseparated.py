"""What an account says of steps that were recorded in part, against the whole records."""

import numpy as np
import pytest
from tests.played import play
from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.tables.classes import CLASSES, COMPUTE_CLASSES, UNSEPARATED, UNSPLIT
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import CaptureLevel

JOB = Job(layout=ParallelLayout(tp=2, pp=2, dp=2), microbatches=2, steps=8)
EXPOSED = [name for name in CLASSES if name.startswith("exposed_")]


def slow_rank(kind, rank, step, microbatch):
    """Return work of which rank 3 has half as much again."""
    return uniform(4 * MS, 8 * MS)(kind, rank, step, microbatch) * (3 if rank == 3 else 2) // 2


@pytest.fixture(scope="module")
def trace():
    """Return the whole records of a job with a slow rank."""
    return capture(JOB, slow_rank)


@pytest.fixture(scope="module")
def whole(trace, tmp_path_factory):
    """Return the diagnosis of a run of which every record was kept."""
    return diagnose(load_trace(play(trace, tmp_path_factory.mktemp("whole"), FullRecords())))


def classes(diagnosis, steps=None):
    """Return the mean time of each class, of some steps or all."""
    ledger = diagnosis.ledger
    if steps is not None:
        ledger = ledger[ledger["step"].isin(steps)]
    return ledger[list(CLASSES)].mean()


def test_steps_in_full_are_accounted_for_as_ever(trace, whole, tmp_path):
    """Fails when keeping other steps as sums changes the account of the steps in full."""
    run = load_trace(play(trace, tmp_path, FullRecords(every_steps=3)))
    assert run.frame("step")["detail"].value_counts().to_dict()["sums"] >= 8 * 3
    found = diagnose(run)
    full = sorted(set(found.ledger["step"]))
    assert {3, 6} <= set(full) < set(range(1, 8))
    np.testing.assert_allclose(classes(found), classes(whole, full), rtol=1e-9)
    assert any(
        "left out of the account" in limit and "sums" in limit for limit in texts(found.limits)
    )
    top = {cause.kind: cause.where for cause in found.causes}
    assert top["straggler_rank"] == {"rank": 3}


def test_sums_alone_tell_computing_from_communication(trace, whole, tmp_path):
    """Fails when communication that was only summed is counted as compute, or lost."""
    run = load_trace(play(trace, tmp_path, FullRecords(every_steps=0), empty_ring=True))
    found = diagnose(run)
    steps = sorted(set(found.ledger["step"]))
    assert set(run.frame("step")["detail"]) == {"sums"}
    expected, reported = classes(whole, steps), classes(found)
    np.testing.assert_allclose(reported[list(COMPUTE_CLASSES)], expected[list(COMPUTE_CLASSES)])
    assert reported[UNSPLIT] == pytest.approx(expected[EXPOSED].sum())
    assert reported.sum() == pytest.approx(expected.sum())
    assert found.causes == ()
    assert found.metrics["exposed_comm_frac"] is None
    assert any("only sums of communication" in limit for limit in texts(found.limits))


@pytest.mark.parametrize("level", [CaptureLevel.STAGES, CaptureLevel.STEPS])
def test_unrecorded_communication_is_not_compute(trace, tmp_path, level):
    """Fails when a level without communication reports its spans as pure compute."""
    path = play(trace, tmp_path, FullRecords(), level=level)
    found = diagnose(load_trace(path))
    reported = classes(found)
    assert reported[list(COMPUTE_CLASSES)].sum() == 0
    assert (reported[UNSEPARATED] > 0) == (level is CaptureLevel.STAGES)
    assert reported.sum() == pytest.approx(found.ledger["step_ns"].mean())
    assert found.causes == ()
    untold = "not recorded" if level is CaptureLevel.STAGES else "only the length of steps"
    assert any(untold in limit for limit in texts(found.limits))


def test_a_job_of_one_rank_has_nothing_to_separate(tmp_path):
    """Fails when a job without communication loses its account at a low level."""
    alone = capture(Job(layout=ParallelLayout(), steps=4), uniform(4 * MS, 8 * MS))
    path = play(alone, tmp_path, FullRecords(), level=CaptureLevel.STAGES)
    reported = classes(diagnose(load_trace(path)))
    assert reported["forward"] == 4 * 4 * MS
    assert reported[UNSEPARATED] == 0


def lone_rank():
    """Return the diagnosis of one rank of two, which waits 30 of its 100 ms in an all-reduce."""
    steps = [{"step": step, "start_ns": step * 100 * MS, "dur_ns": 100 * MS} for step in range(2)]
    rows = [
        {
            "step": step,
            "seq": step,
            "start_ns": (100 * step + 50) * MS,
            "end_ns": (100 * step + 80) * MS,
        }
        for step in range(2)
    ]
    groups = [{"group_id": "g", "axis": "dp", "ranks": [0, 1]}]
    return diagnose(trace_of(run={"world_size": 2}, step=steps, collective=rows, group=groups))


def test_the_wire_of_an_operation_without_peers_is_not_reported():
    """Fails when waiting for ranks that are not in the capture is called transfer, and blamed."""
    found = lone_rank()
    bars = {bar.name: bar.frac for bar in found.waterfall}
    assert bars[UNSPLIT] == pytest.approx(0.3)
    assert "exposed_dp_wire" not in bars
    assert sum(bars.values()) == pytest.approx(1)
    (exposed,) = (one for one in found.findings if one.kind == "exposed_communication")
    assert exposed.claim.code == "exposed_communication.claim_unsplit"
    assert found.metrics["exposed_comm_frac"] is None
    assert any(
        limit.startswith("DP communication that no compute hides takes 30.0 %")
        for limit in texts(found.limits)
    )
    assert found.stragglers["wait_ns"].isna().all()

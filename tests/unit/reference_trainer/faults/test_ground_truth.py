"""The log of applied faults."""

from __future__ import annotations

import json

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.fault_plan import parse_fault, resolve
from meshscope.reference_trainer.faults.ground_truth import GroundTruth, truth_path


def read(path):
    """Return the records of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_is_on_disk_as_soon_as_it_is_over(tmp_path):
    """Fails if a killed run loses steps that it had finished."""
    fault = resolve(parse_fault("slow_rank:rank=random,delay_ms=1"), ParallelLayout(dp=8), seed=3)
    truth = GroundTruth(tmp_path / "new", 5, [fault])
    truth.fault("slow_rank", 0, (10, 30), mode="sleep", microbatch=1)
    truth.step(0, (5, 40), fault_active=True)
    path = truth_path(tmp_path / "new", 5)
    plan, applied, step = read(path)
    assert path.name == "ground_truth.rank00005.jsonl"
    assert plan["record"] == "plan"
    assert plan["faults"][0]["rank"] == fault.rank
    assert plan["faults"][0]["seed"] == 3
    assert applied == {
        "record": "fault",
        "kind": "slow_rank",
        "step": 0,
        "start_ns": 10,
        "end_ns": 30,
        "mode": "sleep",
        "microbatch": 1,
    }
    assert step == {
        "record": "step",
        "step": 0,
        "start_ns": 5,
        "end_ns": 40,
        "fault_active": True,
    }


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    """Fails if a run that asked for no output leaves files behind."""
    monkeypatch.chdir(tmp_path)
    truth = GroundTruth(None, 0, [])
    truth.step(0, (0, 1), fault_active=False)
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_into_the_same_folder_starts_anew(tmp_path):
    """Fails if two runs are mixed in one log."""
    for _ in range(2):
        GroundTruth(tmp_path, 0, []).step(0, (0, 1), fault_active=False)
    assert [record["record"] for record in read(truth_path(tmp_path, 0))] == ["plan", "step"]

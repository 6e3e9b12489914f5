"""Faults of stages and links, and ranks that never come back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config import (
    DataConfig,
    DeviceConfig,
    ModelConfig,
    PaceConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.fault_plan import parse_fault
from meshscope.reference_trainer.ground_truth import truth_path
from meshscope.reference_trainer.host_faults import CRASH_EXIT_CODE

from .recorded_training import RecordedRun, recorded_run, start_ranks, what_is_left

pytestmark = pytest.mark.distributed

MODEL = ModelConfig(layers=2, hidden=32, ffn=64, heads=4, vocab=64, seq_len=64)
DELAY_NS = 25_000_000
PACE_NS = 10_000_000

STAGE_FAULTS = (
    "slow_link:rank=0,peer=1,axis=pp,delay_ms=25,start=2,stop=3",
    "heavy_stage:part=layers,stage=1,delay_ms=25,start=3,stop=4",
    "heavy_stage:part=head,delay_ms=25,start=4,stop=5",
    "heavy_stage:part=embed,delay_ms=25,start=5,stop=6",
    "sequence_imbalance:start=6,stop=8",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Train two stages with one fault after the other."""
    config = TrainerConfig(
        layout=ParallelLayout(pp=2),
        model=MODEL,
        schedule=ScheduleConfig(kind="1f1b", microbatches=2),
        train=TrainConfig(steps=8, global_batch=2),
        pace=PaceConfig(layer_ms=10.0),
        data=DataConfig(documents="long_tail", median_document=8),
        faults=tuple(parse_fault(f"{fault},seed=1") for fault in STAGE_FAULTS),
    )
    found = recorded_run(config, tmp_path_factory.mktemp("stages"))
    assert found.codes == [0, 0]
    return found


def sum_ns(run: RecordedRun, kind: str, step: int, rank: int) -> int:
    """Return the time of a rank in spans of a kind."""
    return int(run.spans(kind, step, rank)["dur_ns"].sum())


def test_a_slow_link_between_stages_is_time_in_the_receive(run: RecordedRun) -> None:
    """Fails if messages are not delayed, or the stages look slow instead of their link."""
    rows = run.tables["p2p"]
    receives = rows[(rows["direction"].astype(str) == "recv") & (rows["step"] == 2)]
    sends = rows[(rows["direction"].astype(str) == "send") & (rows["step"] == 2)]
    matched = receives.merge(
        sends, left_on=["rank", "peer", "seq"], right_on=["peer", "rank", "seq"]
    )
    assert set(receives["rank"]) == {0, 1}
    assert (matched["end_ns_x"] - matched["issue_ns_y"] >= DELAY_NS).all()
    assert len(matched) == len(run.fault("slow_link", 2)) == 4
    for _, delay in run.fault("slow_link", 2).iterrows():
        ends = receives[receives["rank"] == delay["rank"]]["wait_end_ns"]
        assert (ends >= delay["end_ns"]).any()


@pytest.mark.parametrize(
    ("step", "rank", "part"), [(3, 1, "layers"), (4, 1, "head"), (5, 0, "embed")]
)
def test_a_heavy_part_is_time_of_its_stage(
    run: RecordedRun, step: int, rank: int, part: str
) -> None:
    """Fails if extra work of a stage is missing in its forward or backward, or on the other."""
    applied = run.fault("heavy_stage", step)
    assert set(applied["rank"]) == {rank}
    assert set(applied["part"]) == {part}
    # Two microbatches, one block with a pace of 10 ms, and twice as much in the backward.
    assert sum_ns(run, "forward", step, rank) >= 2 * (PACE_NS + DELAY_NS)
    assert sum_ns(run, "backward", step, rank) >= 4 * (PACE_NS + DELAY_NS)


def test_one_of_the_stages_of_a_rank_gets_heavier(tmp_path: Path) -> None:
    """Fails if a stage is taken for a pipeline rank, whose other chunk would be heavy too."""
    config = TrainerConfig(
        layout=ParallelLayout(pp=2, vpp=2),
        model=replace(MODEL, layers=4),
        schedule=ScheduleConfig(kind="interleaved-1f1b", microbatches=2),
        train=TrainConfig(steps=2, global_batch=2),
        faults=(parse_fault("heavy_stage:part=layers,stage=2,delay_ms=25,start=1,seed=1"),),
    )
    run = recorded_run(config, tmp_path)
    assert run.codes == [0, 0]
    # Stage 2 is the second chunk of rank 0: a forward and a backward of each microbatch.
    assert run.faults[["rank", "stage"]].to_numpy().tolist() == [[0, 2]] * 4
    spans = run.spans("forward", 1, 0)
    assert (spans[spans["stage"] == 2]["dur_ns"] >= DELAY_NS).all()
    assert set(spans["stage"]) == {0, 2}


def test_uneven_sequences_slow_the_same_microbatches_on_all_stages(run: RecordedRun) -> None:
    """Fails if work does not follow the sequences, so that a rank would be to blame."""
    for step in (6, 7):
        applied = run.fault("sequence_imbalance", step).set_index(["rank", "microbatch"])
        assert (applied["work"][0] == applied["work"][1]).all()
        for rank in range(2):
            spans = run.spans("forward", step, rank).groupby("microbatch")["dur_ns"].sum()
            # One block per stage, whose pace is 10 ms for a usual microbatch.
            assert (spans >= applied["work"][rank] * 10e6).all()
    assert run.fault("sequence_imbalance", 5).empty


def test_a_slow_link_may_be_hidden_by_the_backward(tmp_path: Path) -> None:
    """Fails if a delayed bucket cannot overlap the backward that goes on beside it."""
    config = TrainerConfig(
        layout=ParallelLayout(dp=2),
        model=MODEL,
        schedule=ScheduleConfig(microbatches=1),
        train=TrainConfig(steps=5, global_batch=2, bucket_bytes=4096),
        pace=PaceConfig(layer_ms=40.0),
        faults=(parse_fault("slow_link:rank=0,axis=dp,delay_ms=10,first=1,start=1,seed=1"),),
    )
    run = recorded_run(config, tmp_path)
    assert run.codes == [0, 0]
    # A bucket whose peers had all come already is not held, so not every one is in the log.
    assert len(run.faults) >= 1
    assert set(run.faults["step"]) <= {1, 2, 3, 4}
    for _, held in run.faults.iterrows():
        backward = run.spans("backward", held["step"], held["rank"])
        assert held["end_ns"] < (backward["start_ns"] + backward["dur_ns"]).max()


@pytest.mark.parametrize("fault", ["hang:rank=1", "crash:rank=1", "crash:rank=1,mode=kill"])
def test_a_rank_that_never_comes_back_stops_the_job_in_its_step(fault: str, tmp_path: Path) -> None:
    """Fails if the others could go on, or the log does not say which rank it was and when."""
    config = TrainerConfig(
        layout=ParallelLayout(dp=2),
        model=MODEL,
        schedule=ScheduleConfig(microbatches=1),
        train=TrainConfig(steps=4, global_batch=2),
        device=DeviceConfig(timeout_s=30),
        faults=(parse_fault(f"{fault},start=2,seed=1"),),
    )
    ranks = start_ranks(config, tmp_path)
    if fault.startswith("crash"):
        for process in ranks:
            process.join(30)
    else:
        _wait_for(truth_path(tmp_path, 1), '"record": "fault"')
    run = what_is_left(ranks, tmp_path)
    expected = {"hang:rank=1": [None, None], "crash:rank=1": [1, CRASH_EXIT_CODE]}
    assert run.codes == expected.get(fault, [1, -9])
    assert run.steps["step"].max() == 1
    row = run.faults.iloc[-1]
    assert (row["rank"], row["step"], row["axis"]) == (1, 2, "dp")
    assert pd.isna(row["end_ns"])


def _wait_for(path: Path, text: str) -> None:
    """Return once a file holds a text, or fail."""
    for _ in range(600):
        if path.exists() and text in path.read_text(encoding="utf-8"):
            return
        time.sleep(0.05)
    pytest.fail(f"{path} never held {text!r}")

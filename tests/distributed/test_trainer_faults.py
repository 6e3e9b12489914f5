"""Each fault leaves the signal of its kind, on its rank, in its steps, and nowhere else."""

from __future__ import annotations

import pandas as pd
import pytest
from tests.distributed.recorded_training import RecordedRun, recorded_run

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    PaceConfig,
    ScheduleConfig,
    TensorConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.fault_plan import parse_fault

pytestmark = pytest.mark.distributed

MODEL = ModelConfig(layers=2, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16)

HOST_FAULTS = (
    "gc_pause:rank=1,delay_ms=40,start=2,stop=3",
    "data_stall:rank=0,delay_ms=60,start=3,stop=4",
    "data_stall:rank=all,delay_ms=60,start=4,stop=5",
    "checkpoint_stall:rank=all,delay_ms=40,bytes_per_s=1e7,start=5,stop=6",
    "slow_rank:rank=1,mode=duty,stopped_frac=0.8,period_ms=25,start=6,stop=7",
    "slow_rank:rank=0,mode=compute,delay_ms=40,start=7,stop=8",
    "slow_rank:tp=1,mode=sleep,delay_ms=40,start=8,stop=9",
    "memory_growth:rank=1,megabytes=32,start=9,stop=11",
    "slow_link:rank=0,axis=tp,delay_ms=20,start=11,stop=12",
    "item_sync:delay_ms=15,start=12,every=2",
)
STEPS = 14
SIGNAL_NS = 3_000_000
"""What it may take on a busy machine until all threads of a process have been stopped, and until
the signal that continues it is on its way."""


def host_config(faults: tuple[str, ...]) -> TrainerConfig:
    """Return a job of two tensor-parallel ranks."""
    return TrainerConfig(
        layout=ParallelLayout(tp=2),
        tensor=TensorConfig(sequence_parallel=True),
        model=MODEL,
        schedule=ScheduleConfig(microbatches=2),
        train=TrainConfig(steps=STEPS, global_batch=4),
        pace=PaceConfig(layer_ms=2.0),
        faults=tuple(parse_fault(f"{fault},seed=1") for fault in faults),
    )


@pytest.fixture(scope="module")
def host_run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Train with one fault of the host after the other."""
    run = recorded_run(host_config(HOST_FAULTS), tmp_path_factory.mktemp("host"))
    assert run.codes == [0, 0]
    return run


@pytest.fixture(scope="module")
def clean_run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Train the same job without a fault."""
    run = recorded_run(host_config(()), tmp_path_factory.mktemp("clean"))
    assert run.codes == [0, 0]
    return run


def longest_ns(rows: pd.DataFrame) -> int:
    """Return the longest duration, 0 where there is none."""
    return int((rows["end_ns"] - rows["start_ns"]).max()) if len(rows) else 0


def longest_span_ns(run: RecordedRun, kind: str, step: int, rank: int) -> int:
    """Return the longest recorded span of a kind, 0 where there is none."""
    return int(
        run.spans(kind, step, rank)["dur_ns"].max() if len(run.spans(kind, step, rank)) else 0
    )


def test_faults_change_times_and_never_the_training(
    host_run: RecordedRun, clean_run: RecordedRun
) -> None:
    """Fails if a fault changes what is learned, or a clean run of the same seed shows a fault."""
    assert host_run.losses == clean_run.losses
    assert clean_run.faults.empty
    assert not clean_run.steps["fault_active"].any()
    assert longest_span_ns(clean_run, "checkpoint", 5, 0) == 0


def test_every_applied_fault_is_on_its_ranks_and_in_its_steps_only(host_run: RecordedRun) -> None:
    """Fails if a fault hits another rank or step than the one that was asked for."""
    expected = {
        "gc_pause": {(2, 1)},
        "data_stall": {(3, 0), (4, 0), (4, 1)},
        "checkpoint_stall": {(5, 0), (5, 1)},
        "slow_rank": {(6, 1), (7, 0), (8, 1)},
        "memory_growth": {(9, 1), (10, 1)},
        "slow_link": {(11, 0), (11, 1)},
        "item_sync": {(12, 0), (12, 1)},
    }
    for kind, places in expected.items():
        rows = host_run.faults[host_run.faults["kind"] == kind]
        assert set(zip(rows["step"], rows["rank"], strict=True)) == places, kind


def test_a_collection_is_seen_by_the_collector_itself(host_run: RecordedRun) -> None:
    """Fails if a gc pause is only a sleep, which no listener of the collector would see."""
    applied = longest_ns(host_run.fault("gc_pause", 2))
    assert applied > 0
    assert longest_span_ns(host_run, "gc", 2, 1) == pytest.approx(applied, rel=0.2)
    assert longest_span_ns(host_run, "gc", 2, 0) < applied / 2


def test_a_late_batch_is_seen_in_the_loader_of_its_ranks(host_run: RecordedRun) -> None:
    """Fails if a data stall shows on a rank whose batches came in time, or not on its own."""
    stalled = {(3, 0), (4, 0), (4, 1)}
    for step, rank in stalled:
        assert longest_span_ns(host_run, "data_load", step, rank) >= 60e6
    assert longest_span_ns(host_run, "data_load", 3, 1) < 60e6


def test_a_slow_checkpoint_blocks_inside_torch_save(host_run: RecordedRun) -> None:
    """Fails if the stall is where no observer of checkpoints looks."""
    for rank in range(2):
        assert longest_span_ns(host_run, "checkpoint", 5, rank) >= 40e6


def test_slow_ranks_differ_in_the_cpu_time_that_they_use(host_run: RecordedRun) -> None:
    """Fails if burnt, slept and taken-away time of a rank cannot be separated."""
    idle_ns, cpu_ns = {}, {}
    for step, rank in ((6, 1), (7, 0), (8, 1)):
        spans = host_run.spans("forward", step, rank)
        idle_ns[step] = (spans["dur_ns"] - spans["cpu_ns"]).sum()
        cpu_ns[step] = spans["cpu_ns"].sum()
    assert cpu_ns[7] >= 2 * 40e6
    assert idle_ns[8] >= 2 * 40e6
    assert cpu_ns[8] < 40e6
    # Taken away is wall time in which nothing was computed, wherever it fell.
    assert idle_ns[6] >= sum(
        overlap_ns(stop, host_run.spans("forward", 6, 1))
        for _, stop in host_run.fault("slow_rank", 6).iterrows()
    )


def overlap_ns(stop: pd.Series, spans: pd.DataFrame) -> float:
    """Return how long a process was stopped inside spans, less what signals take to arrive."""
    begin = spans["start_ns"].clip(lower=stop["start_ns"] + SIGNAL_NS)
    end = (spans["start_ns"] + spans["dur_ns"]).clip(upper=stop["end_ns"] - SIGNAL_NS)
    return float((end - begin).clip(lower=0).sum())


def test_a_stopped_process_does_nothing_at_all_meanwhile(host_run: RecordedRun) -> None:
    """Fails if stops are only noted, so that the rank goes on where it is said to stand still."""
    stops = host_run.fault("slow_rank", 6)
    assert set(stops["mode"]) == {"duty"}
    spans, calls = host_run.tables["span"], host_run.tables["collective"]
    inside = {}
    for rank in range(2):
        events = pd.concat(
            [
                spans.loc[(spans["rank"] == rank) & (spans["step"] == 6), "start_ns"],
                calls.loc[(calls["rank"] == rank) & (calls["step"] == 6), "issue_ns"],
            ]
        )
        assert len(events) > 20
        inside[rank] = sum(
            int(events.between(stop["start_ns"] + SIGNAL_NS, stop["end_ns"] - SIGNAL_NS).sum())
            for _, stop in stops.iterrows()
        )
    # Four fifths of the step are stops; the other rank waits, and begins what it can in them.
    assert len(stops) >= 3
    assert inside[1] == 0


def test_a_read_number_blocks_the_host_of_every_rank(
    host_run: RecordedRun, clean_run: RecordedRun
) -> None:
    """Fails if a read that waits for the device leaves nothing that tells it from the step."""
    for rank in range(2):
        for step, blocked in ((12, True), (13, False)):
            assert (longest_span_ns(host_run, "host_blocked", step, rank) >= 15e6) == blocked
        assert longest_span_ns(clean_run, "host_blocked", 12, rank) == 0
    assert (host_run.fault("item_sync", 12)["requested_ns"] == 15e6).all()


def test_memory_grows_on_one_rank(host_run: RecordedRun) -> None:
    """Fails if the memory is not really taken, or on another rank."""
    memory = host_run.tables["memory"].groupby(["rank", "step"])["rss_bytes"].max()
    assert memory[1][11] - memory[1][8] > 60e6
    assert memory[0][11] - memory[0][8] < 30e6


def test_a_slow_link_of_a_group_is_time_in_the_wait(host_run: RecordedRun) -> None:
    """Fails if a slow link looks like slow compute of its members."""
    rows = host_run.tables["collective"]
    rows = rows[(rows["axis"].astype(str) == "tp") & (rows["step"] == 11)]
    assert set(rows["rank"]) == {0, 1}
    assert (rows["end_ns"] - rows["issue_ns"]).median() >= 20e6
    assert (rows["wait_end_ns"] - rows["wait_start_ns"]).median() >= 15e6

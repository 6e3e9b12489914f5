"""Faults of stages and links, and ranks that never come back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tests.distributed.forked_ranks import PATIENCE_S
from tests.distributed.recorded_training import (
    RecordedRun,
    recorded_run,
    start_recorded,
    what_is_left,
)

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    DataConfig,
    DeviceConfig,
    ModelConfig,
    PaceConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.fault_plan import parse_fault
from meshscope.reference_trainer.config.presets import load_config
from meshscope.reference_trainer.faults.ground_truth import truth_path
from meshscope.reference_trainer.faults.host_faults import CRASH_EXIT_CODE

pytestmark = pytest.mark.distributed

MODEL = ModelConfig(layers=2, hidden=32, ffn=64, heads=4, vocab=64, seq_len=64)
DELAY_NS = 25_000_000
PACE_NS = 10_000_000
OFFSET_MS, DRIFT = 300_000, 0.09
"""Of a wrong clock: longer than the run, and nearly as fast as a clock may be."""

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
        faults=(
            parse_fault("heavy_stage:part=layers,stage=2,delay_ms=25,start=1,seed=1"),
            parse_fault(f"clock_skew:rank=0,offset_ms={OFFSET_MS},drift_ppm={DRIFT * 1e6},seed=1"),
        ),
    )
    run = recorded_run(config, tmp_path)
    assert run.codes == [0, 0]
    # Stage 2 is the second chunk of rank 0: a forward and a backward of each microbatch.
    heavy = run.faults[run.faults["kind"] == "heavy_stage"]
    assert heavy[["rank", "stage"]].to_numpy().tolist() == [[0, 2]] * 4
    _check_clock(run)
    spans = run.spans("forward", 1, 0)
    assert (spans[spans["stage"] == 2]["dur_ns"] >= DELAY_NS).all()
    assert set(spans["stage"]) == {0, 2}


def _check_clock(run: RecordedRun) -> None:
    """Check that the capture of rank 0, and no other, tells the times of a wrong clock."""
    (skew,) = run.faults[run.faults["kind"] == "clock_skew"].to_dict("records")
    assert (skew["rank"], skew["offset_ns"]) == (0, OFFSET_MS * 1e6)
    recorded, steps = run.tables["step"], run.steps
    for rank, (offset_ns, drift) in enumerate(((OFFSET_MS * 1e6, DRIFT), (0, 0))):
        reported = recorded[recorded["rank"] == rank].set_index("step")
        real = steps[steps["rank"] == rank].set_index("step")
        since_ns = reported["start_ns"] + reported["dur_ns"] - skew["start_ns"] - offset_ns
        end_ns = skew["start_ns"] + since_ns / (1 + drift)
        assert ((real["start_ns"] < end_ns) & (end_ns < real["end_ns"])).all()
    applied = run.fault("heavy_stage", 1).sort_values("start_ns")
    real_ns = (applied["end_ns"] - applied["start_ns"]).min()
    forwards = run.spans("forward", 1, 0)
    assert (forwards[forwards["stage"] == 2]["dur_ns"] >= real_ns * (1 + DRIFT)).all()


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


def test_what_the_trainer_tells_of_its_sequences_is_what_its_passes_follow(
    run: RecordedRun,
) -> None:
    """Fails if a rank tells nothing, another microbatch's work, or that of steps without the fault."""
    reported = run.tables["microbatch"].set_index(["step", "rank", "microbatch"]).sort_index()
    assert len(reported) == 8 * 2 * 2
    assert (reported["tokens"] == MODEL.seq_len).all()
    even = reported.loc[:5, "sum_sq"]
    assert even.nunique() == 1
    for step in (6, 7):
        applied = (
            run.fault("sequence_imbalance", step).groupby(["rank", "microbatch"])["work"].first()
        )
        squares = reported.loc[step, "sum_sq"]
        ratio = squares / applied
        assert ratio.max() == pytest.approx(ratio.min())
        assert ratio.iloc[0] == pytest.approx(even.iloc[0], rel=0.01)


@pytest.mark.parametrize(("kind", "chunks"), [("zb-h1", 1), ("zb-v", 2)])
def test_split_backwards_are_as_uneven_as_whole_ones(
    kind: str, chunks: int, tmp_path: Path
) -> None:
    """Fails if a pace swallows what a fault adds, or the weights' half has the usual work."""
    last = 2 * chunks - 1
    text = f"""
    layout = {{ pp = 2, vpp = {chunks} }}
    model = {{ layers = {2 * chunks}, hidden = 32, ffn = 64, vocab = 64, seq_len = 64 }}
    schedule = {{ kind = "{kind}", microbatches = 4 }}
    train = {{ steps = 5, global_batch = 4 }}
    pace = {{ layer_ms = 5 }}
    data = {{ documents = "long_tail", median_document = 8 }}
    """
    faults = (
        "heavy_stage:part=layers,stage=0,delay_ms=15,start=1,stop=2",
        f"heavy_stage:part=layers,stage={last},delay_ms=15,start=2,stop=3",
        "sequence_imbalance:start=3",
    )
    run = recorded_run(
        load_config(text, overrides=(), faults=[f"{fault},seed=1" for fault in faults]), tmp_path
    )
    assert run.codes == [0, 0]
    pace_ns, heavy_ns = 5e6, 15e6

    def halves_ns(step: int, stage: int) -> tuple[pd.Series, pd.Series]:
        spans = run.tables["span"]
        spans = spans[(spans["step"] == step) & (spans["stage"] == stage)]
        names = spans["kind"].astype(str)
        by_microbatch = spans.set_index("microbatch")["dur_ns"]
        return tuple(  # type: ignore[return-value]
            by_microbatch[(names == f"backward_{half}").to_numpy()] for half in ("input", "weight")
        )

    # The first stage has its whole backward in the weights' half.
    assert (halves_ns(1, 0)[1] >= 2 * (pace_ns + heavy_ns)).all()
    inputs, weights = halves_ns(2, last)
    assert (inputs >= pace_ns + 2 * heavy_ns).all()
    assert (weights >= pace_ns).all()
    for step in (3, 4):
        work = run.fault("sequence_imbalance", step).groupby("microbatch")["work"].first()
        assert work.max() > 1.1 > 0.9 > work.min()
        assert (halves_ns(step, 0)[1] >= 2 * work * pace_ns).all()
        for half in halves_ns(step, last):
            assert len(half) == 4
            assert (half >= work * pace_ns).all()


def test_slow_links_of_sharded_replicas_contexts_and_experts(tmp_path: Path) -> None:
    """Fails if an axis escapes a slow link: a ring, an exchange of tokens, a reduce-scatter."""
    text = """
    layout = { dp = 2, cp = 2, ep = 2 }
    model = { layers = 2, hidden = 32, ffn = 64, vocab = 64, seq_len = 16 }
    moe = { experts = 2, experts_per_token = 1 }
    schedule = { microbatches = 1 }
    train = { steps = 4, global_batch = 2 }
    data_parallel = { zero = 1 }
    """
    faults = (
        "slow_link:rank=0,axis=cp,delay_ms=30,start=1,stop=2",
        "slow_link:rank=2,axis=ep,delay_ms=30,start=2,stop=3",
        "slow_link:rank=0,axis=dp,delay_ms=20,bytes_per_s=1e6,start=3,stop=4",
    )
    run = recorded_run(
        load_config(text, overrides=(), faults=[f"{fault},seed=1" for fault in faults]), tmp_path
    )
    assert run.codes == [0] * 4
    p2p, calls = run.tables["p2p"], run.tables["collective"]
    slow = {
        1: (p2p[(p2p["axis"].astype(str) == "cp") & (p2p["direction"] == "recv")], {0, 1}),
        2: (calls[calls["axis"].astype(str) == "ep"], {2, 3}),
        3: (calls[calls["kind"].astype(str) == "reduce_scatter"], {0, 1, 2, 3}),
    }
    for step, (rows, ranks) in slow.items():
        dur_ns = (rows["end_ns"] - rows["issue_ns"])[rows["step"] == step]
        least_ns = dur_ns.groupby(rows["rank"]).min()
        asked = run.fault("slow_link", step)
        assert set(asked["rank"]) == ranks
        assert {rank for rank, ns in least_ns.items() if ns >= asked["requested_ns"].min()} == ranks
        assert (asked["end_ns"] - asked["start_ns"] >= asked["requested_ns"]).all()
    # Latency, and a microsecond for every byte.
    assert (asked["requested_ns"] == 20e6 + 1000 * asked["size_bytes"]).all()
    assert asked["size_bytes"].max() > 10_000


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
    places = set(zip(run.faults["rank"], run.faults["step"], strict=True))
    assert places == {(rank, step) for rank in range(2) for step in range(1, 5)}
    # A loaded machine may hold a thread beyond the backward, so one step of each rank suffices:
    # a bucket that cannot overlap is held beyond its end in every step.
    overlapped = set()
    for _, held in run.faults.iterrows():
        backward = run.spans("backward", held["step"], held["rank"])
        if held["end_ns"] < (backward["start_ns"] + backward["dur_ns"]).max():
            overlapped.add(held["rank"])
    assert overlapped == {0, 1}


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
    ranks = start_recorded(config, tmp_path)
    hangs = fault.startswith("hang")
    if hangs:
        _wait_for(truth_path(tmp_path, 1), '"record": "fault"')
    run = what_is_left(ranks, tmp_path, patience_s=0.0 if hangs else PATIENCE_S)
    expected = {"hang:rank=1": [None, None], "crash:rank=1": [1, CRASH_EXIT_CODE]}
    assert run.codes == expected.get(fault, [1, -9])
    assert run.steps["step"].max() == 1
    row = run.faults.iloc[-1]
    assert (row["rank"], row["step"], row["axis"]) == (1, 2, "dp")
    assert pd.isna(row["end_ns"])


def _wait_for(path: Path, text: str) -> None:
    """Return once a file holds a text, or fail."""
    deadline = time.monotonic() + PATIENCE_S
    while not (path.exists() and text in path.read_text(encoding="utf-8")):
        assert time.monotonic() < deadline, f"{path} never held {text!r}"
        time.sleep(0.05)

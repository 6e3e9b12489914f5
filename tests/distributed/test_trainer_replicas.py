"""Sharding, compression, precision and recomputation against one process with plain autograd."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.distributed.replica_job import Run, check_wires, mesh_run, plain_run
from tests.distributed.trainer_job import run_ranks

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.parallel_config import (
    DataParallelConfig,
    MemoryConfig,
    MoeConfig,
    TensorConfig,
)
from meshscope.reference_trainer.replica.memory_account import account_path

pytestmark = pytest.mark.distributed

MODEL = ModelConfig(layers=4, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16)
TIED = replace(MODEL, tied=True)
MOE = MoeConfig(experts=4, experts_per_token=2, balance_weight=0.1)
# Small buckets, so that several of them are on their way at once. The norm is only measured.
TRAIN = TrainConfig(
    steps=4, global_batch=8, learning_rate=0.5, bucket_bytes=4096, max_grad_norm=math.inf
)
CLIPPED = replace(TRAIN, max_grad_norm=0.3)
EXACT = (1e-5, 1e-5)
"""Largest difference of a loss, and of a norm as a part of it."""
BF16_SUMS = (1e-4, 2e-3)
INT8_SUMS = (5e-4, 5e-3)
BF16_MODEL = (2e-3, 2e-2)
BF16_GRADIENTS = MemoryConfig(precision="bf16", gradients="bf16")


def run(
    sizes: dict[str, int],
    kind: str = "1f1b",
    *,
    model: ModelConfig = MODEL,
    train: TrainConfig = TRAIN,
    microbatches: int = 4,
    memory: MemoryConfig | None = None,
    moe: MoeConfig | None = None,
    sequence_parallel: bool = False,
    **sharing: object,
) -> TrainerConfig:
    """Return a run of the small model over a mesh."""
    return TrainerConfig(
        layout=ParallelLayout(**sizes),
        model=model,
        train=train,
        schedule=ScheduleConfig(kind=kind, microbatches=microbatches),  # type: ignore[arg-type]
        data_parallel=DataParallelConfig(**sharing),  # type: ignore[arg-type]
        memory=memory or MemoryConfig(),
        moe=moe or MoeConfig(),
        tensor=TensorConfig(sequence_parallel=sequence_parallel),
    )


DP2 = {"dp": 2}
FOUR = {"pp": 2, "dp": 2}
CHUNKS = {"pp": 2, "dp": 2, "vpp": 2}
EIGHT = {"tp": 2, "pp": 2, "dp": 2}

SMALL = {
    "zero1": (run(DP2, zero=1), EXACT),
    "zero2": (run(DP2, zero=2), EXACT),
    "zero3": (run(DP2, zero=3), EXACT),
    "bf16-sums": (run(DP2, compression="bf16"), BF16_SUMS),
    "int8-sums-zero2": (run(DP2, zero=2, compression="int8"), INT8_SUMS),
    "bf16-zero1": (run(DP2, zero=1, memory=MemoryConfig(precision="bf16")), BF16_MODEL),
    "bf16-gradients-zero1": (run(DP2, zero=1, memory=BF16_GRADIENTS), BF16_MODEL),
    "tp2-clipped-selective": (
        run({"tp": 2}, train=CLIPPED, memory=MemoryConfig(recompute="selective")),
        EXACT,
    ),
}

LARGE = {
    **{f"2x2x2-zero{zero}": (run(EIGHT, microbatches=2, zero=zero), EXACT) for zero in range(4)},
    **{
        f"2x2x2-zero{zero}-clipped": (
            run(EIGHT, "gpipe", microbatches=2, train=CLIPPED, zero=zero),
            EXACT,
        )
        for zero in (1, 3)
    },
    **{
        f"{kind}-zero{zero}": (run(sizes, kind, zero=zero), EXACT)
        for kind, sizes, stages in (
            ("interleaved-1f1b", CHUNKS, (0, 2)),
            ("zb-h1", FOUR, (0, 1, 3)),
            ("zb-v", CHUNKS, (0, 2, 3)),
            ("dualpipe-v", CHUNKS, (0, 2)),
        )
        for zero in stages
    },
    "zb-v-zero2-int8": (run(CHUNKS, "zb-v", zero=2, compression="int8"), INT8_SUMS),
    "zb-h1-bf16": (run(FOUR, "zb-h1", memory=MemoryConfig(precision="bf16")), BF16_MODEL),
    "zb-v-zero3-bf16": (
        run(CHUNKS, "zb-v", zero=3, memory=MemoryConfig(precision="bf16")),
        BF16_MODEL,
    ),
    **{
        f"bf16-gradients-{kind}-zero{zero}": (
            run(sizes, kind, zero=zero, memory=BF16_GRADIENTS),
            BF16_MODEL,
        )
        for kind, sizes, zero in (
            ("1f1b", FOUR, 0),
            ("1f1b", FOUR, 2),
            ("zb-h1", FOUR, 1),
            ("zb-v", CHUNKS, 2),
        )
    },
    "bf16-gradients-tied": (
        run(FOUR, "zb-h1", model=TIED, zero=1, memory=BF16_GRADIENTS),
        BF16_MODEL,
    ),
    "tied-1f1b-zero1": (run(FOUR, model=TIED, zero=1), EXACT),
    "tied-zb-v-zero2": (run(CHUNKS, "zb-v", model=TIED, zero=2), EXACT),
    "hybrid-4-in-2": (run({"dp": 4, "tp": 2}, microbatches=2, zero=3, shard_ranks=2), EXACT),
    "zero3-full-offload": (
        run(FOUR, zero=3, memory=MemoryConfig(recompute="full", offload=True)),
        EXACT,
    ),
    "zb-h1-zero2-full": (run(FOUR, "zb-h1", zero=2, memory=MemoryConfig(recompute="full")), EXACT),
    "sequence-zero2": (
        run({"tp": 2, "dp": 2}, microbatches=2, zero=2, sequence_parallel=True),
        EXACT,
    ),
    "experts-zero2": (
        run({"tp": 2, "dp": 2, "ep": 2}, microbatches=2, moe=MOE, zero=2, sequence_parallel=True),
        EXACT,
    ),
    "experts-zero1-full": (
        run({"dp": 2, "ep": 2}, moe=MOE, zero=1, memory=MemoryConfig(recompute="full")),
        EXACT,
    ),
    "ring-zero2": (run({"dp": 2, "cp": 2}, microbatches=2, zero=2), EXACT),
    "zb-v-zero1-selective": (
        run(CHUNKS, "zb-v", zero=1, memory=MemoryConfig(recompute="selective", offload=True)),
        EXACT,
    ),
}


def kind_of(config: TrainerConfig) -> tuple[bool, int, float]:
    """Return what of a configuration one process must be told."""
    return config.model.tied, config.moe.experts, config.train.max_grad_norm


@pytest.fixture(scope="module")
def plain() -> dict[tuple[bool, int, float], Run]:
    """Train each kind of model that the cases need on one process."""
    configs = [
        TrainerConfig(model=model, train=train, moe=moe)
        for model, train, moe in (
            (MODEL, TRAIN, MoeConfig()),
            (MODEL, CLIPPED, MoeConfig()),
            (TIED, TRAIN, MoeConfig()),
            (MODEL, TRAIN, MOE),
        )
    ]
    return {kind_of(config): plain_run(config) for config in configs}


def assert_same(
    case: tuple[TrainerConfig, tuple[float, float]],
    plain: dict[tuple[bool, int, float], Run],
    out: Path,
) -> None:
    """Train over the mesh, and compare losses and gradient norms of all steps."""
    config, (loss_bound, norm_bound) = case
    expected = plain[kind_of(config)]
    found = mesh_run(config, out)
    off = [abs(a - b) for a, b in zip(found.losses, expected.losses, strict=True)]
    norms_off = [abs(a / b - 1) for a, b in zip(found.norms, expected.norms, strict=True)]
    print(f"max loss difference {max(off):.2e}, of norm {max(norms_off):.2e}")
    assert max(off) < loss_bound
    assert max(norms_off) < norm_bound


@pytest.mark.parametrize("case", SMALL)
def test_two_ranks_train_the_model_of_one(
    case: str, plain: dict[tuple[bool, int, float], Run], tmp_path: Path
) -> None:
    """Fails if sharding, compression, precision or recomputation changes losses or gradients."""
    assert_same(SMALL[case], plain, tmp_path)


@pytest.mark.slow
@pytest.mark.sampled(
    keep=(
        "2x2x2-zero1-clipped",
        "interleaved-1f1b-zero2",
        "zb-v-zero3",
        "dualpipe-v-zero2",
        "zb-v-zero2-int8",
        "bf16-gradients-zb-h1-zero1",
        "tied-zb-v-zero2",
        "hybrid-4-in-2",
        "zero3-full-offload",
        "experts-zero1-full",
        "ring-zero2",
    )
)
@pytest.mark.parametrize("case", LARGE)
def test_larger_meshes_and_every_schedule_train_the_same_model(
    case: str, plain: dict[tuple[bool, int, float], Run], tmp_path: Path
) -> None:
    """Fails if what holds on two ranks does not hold with other axes or split backwards."""
    assert_same(LARGE[case], plain, tmp_path)


def test_clipping_changes_the_training(plain: dict[tuple[bool, int, float], Run]) -> None:
    """Fails if the clipped cases above could pass without clipping."""
    free, clipped = plain[False, 0, math.inf], plain[False, 0, CLIPPED.max_grad_norm]
    assert min(free.norms) > CLIPPED.max_grad_norm
    assert max(abs(a - b) for a, b in zip(free.losses, clipped.losses, strict=True)) > 1e-3


def test_compressed_sums_stay_within_their_bounds(tmp_path: Path) -> None:
    """Fails if a compressed sum over real ranks is further off than documented."""
    run_ranks(check_wires, run(DP2), tmp_path)


def test_the_first_stage_keeps_the_activations_of_more_microbatches(tmp_path: Path) -> None:
    """Fails if the account misses what 1F1B has in flight: 2 microbatches, then 1."""
    memory = MemoryConfig(recompute="full", offload=True, account=True)
    mesh_run(run({"pp": 2}, memory=memory), tmp_path)
    peaks = []
    for rank in range(2):
        records = [
            json.loads(line) for line in account_path(tmp_path, rank).read_text().splitlines()
        ]
        assert [r["phase"] for r in records] == ["weights", "pipeline", "update"] * TRAIN.steps
        assert {r["activations_bytes"] for r in records} == {0}
        peaks.append({r["offloaded_peak_bytes"] for r in records if r["phase"] == "pipeline"})
    # Two blocks' inputs per microbatch of 2 sequences; on the last stage also those of the
    # final norm and of the head. Token ids are too small to move.
    hidden_bytes = 2 * MODEL.seq_len * MODEL.hidden * 4
    assert peaks == [{2 * 2 * hidden_bytes}, {4 * hidden_bytes}]

"""Training that is saved and goes on, on the same mesh and on others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.distributed.checkpoint_job import (
    MODEL,
    STEPS,
    TRAIN,
    Job,
    assert_same_tensors,
    fail_to_resume,
    losses,
    run,
    run_jobs,
    saved,
    whole_tensors,
)
from tests.distributed.trainer_job import run_ranks

from meshscope.reference_trainer.config.config import (
    DataParallelConfig,
    MemoryConfig,
    MoeConfig,
    ScheduleConfig,
    TensorConfig,
)
from meshscope.reference_trainer.config.sections import CheckpointConfig
from meshscope.reference_trainer.planning.dry_run import checkpoint_size

pytestmark = pytest.mark.distributed

DP2 = {"dp": 2}
SYNC = CheckpointConfig(mode="sync")
MOMENTUM = replace(TRAIN, optimizer="sgd", momentum=0.9, learning_rate=0.1)
TIED = replace(MODEL, tied=True)
MOE = MoeConfig(experts=4, experts_per_token=2, balance_weight=0.1)
SEQUENCE = TensorConfig(sequence_parallel=True)
BF16 = MemoryConfig(precision="bf16")


def zero(stage: int, shard_ranks: int = 0) -> DataParallelConfig:
    """Return a ZeRO stage."""
    return DataParallelConfig(zero=stage, shard_ranks=shard_ranks)  # type: ignore[arg-type]


def schedule(kind: str) -> ScheduleConfig:
    """Return a schedule of four microbatches."""
    return ScheduleConfig(kind=kind, microbatches=4)  # type: ignore[arg-type]


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """Fails if the losses after a resume are others, on this mesh or on another of two ranks."""
    run_jobs(
        [
            Job(name="whole", config=run(DP2)),
            Job(name="same", config=run(DP2, checkpoint=SYNC), after="whole"),
            Job(name="tp", config=run({"tp": 2}), after="whole"),
            Job(name="pp", config=run({"pp": 2}), after="whole"),
        ],
        tmp_path,
    )
    rest = losses(tmp_path, "whole")[2:]
    assert losses(tmp_path, "same") == rest
    for name in ("tp", "pp"):
        assert losses(tmp_path, name) == pytest.approx(rest, abs=1e-6)
    # One was saved behind the training, the other while it waited.
    assert_same_tensors(saved(tmp_path, "whole", STEPS), saved(tmp_path, "same", STEPS))


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_sharded_state_is_saved_whole(stage: int, tmp_path: Path) -> None:
    """Fails if a part of sharded weights or averages is lost, or lands in another place."""
    run_jobs(
        [
            Job(name="sharded", config=run(DP2, data_parallel=zero(stage))),
            Job(name="whole", config=run({"tp": 2}), after="sharded", trains=False),
            Job(
                name="again",
                config=run(DP2, data_parallel=zero(stage)),
                after="whole",
                trains=False,
            ),
            Job(name="resumed", config=run(DP2, data_parallel=zero(stage)), after="again"),
        ],
        tmp_path,
    )
    for name in ("whole", "again"):
        assert_same_tensors(saved(tmp_path, "sharded"), saved(tmp_path, name))
    assert losses(tmp_path, "resumed") == losses(tmp_path, "sharded")[2:]


def test_masters_and_momentum_survive(tmp_path: Path) -> None:
    """Fails if bf16 training goes on from rounded weights, or SGD without its momentum."""
    config = run(DP2, train=MOMENTUM, memory=BF16, data_parallel=zero(1))
    full = run({"pp": 2}, train=MOMENTUM, model=MODEL)
    run_jobs(
        [
            Job(name="whole", config=config),
            Job(name="fp32", config=full, after="whole", trains=False),
            Job(name="resumed", config=config, after="fp32"),
        ],
        tmp_path,
    )
    assert losses(tmp_path, "resumed") == losses(tmp_path, "whole")[2:]
    tensors = whole_tensors(saved(tmp_path, "whole"))
    weight = tensors["weights.blocks.3.qkv.weight"]
    assert weight.shape == (3, MODEL.hidden, MODEL.hidden)
    assert not weight.equal(weight.bfloat16().float())
    assert tensors["momentum_buffer.head.output"].abs().max() > 0
    assert sum(tensor.nbytes for tensor in tensors.values()) == checkpoint_size(config).total


CHAINS = {
    "dense": [
        run({"tp": 2, "pp": 2, "dp": 2}, schedule=schedule("1f1b"), data_parallel=zero(1)),
        run({"dp": 8}, schedule=ScheduleConfig(microbatches=1), data_parallel=zero(3)),
        run({"tp": 4, "pp": 2}, tensor=SEQUENCE),
        run({"pp": 4, "dp": 2}, schedule=schedule("zb-h1"), data_parallel=zero(2)),
        run({"dp": 4, "tp": 2}, schedule=ScheduleConfig(microbatches=2), data_parallel=zero(3, 2)),
        run({"pp": 2, "dp": 4, "vpp": 2}, schedule=ScheduleConfig(kind="interleaved-1f1b", microbatches=2), data_parallel=zero(1)),
        run({"tp": 2, "dp": 2, "cp": 2}, schedule=ScheduleConfig(microbatches=2), tensor=SEQUENCE, data_parallel=zero(2), memory=BF16),
        run({"tp": 2, "pp": 2, "dp": 2, "vpp": 2}, schedule=schedule("zb-v"), data_parallel=zero(1)),
    ],
    "tied": [
        run({"tp": 2, "pp": 2, "dp": 2}, model=TIED, data_parallel=zero(1)),
        run({"pp": 2, "dp": 4, "vpp": 2}, model=TIED, schedule=ScheduleConfig(kind="zb-v", microbatches=2), data_parallel=zero(2)),
        run({"tp": 4, "pp": 2}, model=TIED),
    ],
    "experts": [
        run({"tp": 2, "dp": 4, "ep": 2}, moe=MOE, schedule=ScheduleConfig(microbatches=2), data_parallel=zero(1)),
        run({"pp": 2, "dp": 4, "ep": 4}, moe=MOE, schedule=ScheduleConfig(microbatches=2)),
        run({"tp": 4, "dp": 2}, moe=MOE, tensor=SEQUENCE, schedule=ScheduleConfig(microbatches=2), data_parallel=zero(2)),
        run({"dp": 8}, moe=MOE, schedule=ScheduleConfig(microbatches=1), data_parallel=zero(3)),
    ],
}  # fmt: skip


@pytest.mark.sampled(keep=("tied",))
@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_any_mesh_loads_what_any_other_saved(chain: str, tmp_path: Path) -> None:
    """Fails if a bit changes on the way through meshes of eight ranks, or training differs."""
    meshes = CHAINS[chain]
    jobs = [Job(name="0", config=meshes[0])]
    for number, config in enumerate([*meshes[1:], meshes[0]], start=1):
        jobs.append(Job(name=str(number), config=config, after=str(number - 1), trains=False))
    last = jobs[-1].name
    jobs.append(Job(name="resumed", config=meshes[0], after=last))
    jobs += [
        Job(name=f"train{number}", config=config, after="0")
        for number, config in enumerate(meshes[1:3], start=1)
    ]
    run_jobs(jobs, tmp_path)
    for number in range(1, len(meshes) + 1):
        assert_same_tensors(saved(tmp_path, "0"), saved(tmp_path, str(number)))
    rest = losses(tmp_path, "0")[2:]
    assert losses(tmp_path, "resumed") == rest
    for number in (1, 2):
        assert losses(tmp_path, f"train{number}") == pytest.approx(rest, abs=1e-5)


def test_steps_of_a_resumed_run_are_separated(tmp_path: Path) -> None:
    """Fails if a resumed run writes over the truth of the run before it, or counts from 0."""
    config = run(DP2, train=replace(TRAIN, steps=2))
    longer = run(DP2)
    run_jobs([Job(name="a", config=config), Job(name="a", config=longer, after="a")], tmp_path)
    first, second = (
        (folder / "ground_truth.rank00001.jsonl").read_text().splitlines()
        for folder in (tmp_path / "a", tmp_path / "a" / "attempt2")
    )
    steps = [
        [record["step"] for record in map(json.loads, lines) if record["record"] == "step"]
        for lines in (first, second)
    ]
    assert steps == [[0, 1], [2, 3]]


def test_a_checkpoint_that_one_rank_cannot_read_stops_all(tmp_path: Path) -> None:
    """Fails if ranks start from different steps, or some wait for ever for one that refused."""
    config = run(DP2, train=replace(TRAIN, steps=2))
    run_jobs([Job(name="a", config=config)], tmp_path)
    run_ranks(fail_to_resume, config, tmp_path)
    said = [(tmp_path / f"said{rank}").read_text() for rank in range(2)]
    assert "another rank of the job cannot use it" in said[0]
    assert f"{tmp_path}/disk1/step-00000002: is damaged: checkpoint.json cannot be read" in said[1]

"""A whole step of one of two replicas, in a group whose other member is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.parallel_config import DataParallelConfig, MemoryConfig
from meshscope.reference_trainer.model.model import Stage
from meshscope.reference_trainer.model.pace import NoPace
from meshscope.reference_trainer.parallel.mesh import Mesh, MeshGroup, group_of_one
from meshscope.reference_trainer.replica.pipeline_parallel import Pipeline, stage_part
from meshscope.reference_trainer.replica.replica import build_replica
from meshscope.reference_trainer.replica.tied_embedding import TiedEmbedding

MODEL = ModelConfig(layers=2, hidden=16, ffn=32, heads=2, vocab=32, seq_len=8)
PARAMETERS = 2 * (4 * 16 * 16 + 2 * 16 * 32 + 9 * 16 + 32) + (2 * 32 + 8 + 2) * 16
MICROBATCHES = 2
BUCKETS = 3
BUCKET_BYTES = 8 * 1024


@pytest.fixture
def mesh(group_of_two):
    """Return the mesh of the first of two replicas."""
    itself = dist.new_group([0])
    tp, pp = (
        MeshGroup(axis=axis, ranks=(0,), position=0, handle=itself) for axis in (Axis.TP, Axis.PP)
    )
    replicas = replace(group_of_two, axis=Axis.DP)
    return Mesh(
        layout=ParallelLayout(dp=2),
        rank=0,
        device=torch.device("cpu"),
        tp=tp,
        pp=pp,
        dp=replicas,
        cp=group_of_one(0),
        ep=group_of_one(0),
        replicas=replicas,
        replicas_and_tp=replicas,
        expert_replicas=replicas,
    )


@pytest.fixture
def step(mesh, comm):
    """Return a function that builds a replica, runs two steps, and counts the second one's."""

    def run(**sections):
        config = TrainerConfig(
            layout=mesh.layout,
            model=MODEL,
            schedule=ScheduleConfig(microbatches=MICROBATCHES),
            train=TrainConfig(global_batch=8, bucket_bytes=BUCKET_BYTES, optimizer="adamw"),
            **sections,
        )
        part = stage_part(config, 0)
        stage = Stage(MODEL, part, seed=1, tp=mesh.tp, comm=comm, runner=NoPace())
        assert sum(p.numel() for p in stage.parameters()) == PARAMETERS
        tied = TiedEmbedding(config, mesh, [stage], comm)
        replica = build_replica(config, mesh, [stage], tied, comm)
        pipeline = Pipeline(config, mesh, [stage], comm, replica.listener)
        ids = torch.zeros(4, MODEL.seq_len, dtype=torch.int64)
        for _ in range(2):
            comm.collectives.clear()
            replica.start_step()
            pipeline.step(ids, ids)
            replica.finish()
            replica.update()
        replica.settle()
        counts = {name: count for (name, axis), count in comm.collectives.items()}
        return counts, replica.kept().sizes()

    return run


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"zero": 0}, {"all_reduce": BUCKETS}),
        ({"zero": 1}, {"reduce_scatter": BUCKETS, "all_gather": BUCKETS}),
        ({"zero": 2}, {"reduce_scatter": BUCKETS * MICROBATCHES, "all_gather": BUCKETS}),
        ({"zero": 0, "compression": "int8"}, {"all_gather": BUCKETS}),
        ({"zero": 1, "compression": "int8"}, {"all_to_all": BUCKETS, "all_gather": BUCKETS}),
        # Two blocks, the embedding and the head are one group of weights each.
        ({"zero": 3}, {"reduce_scatter": 4, "all_gather": 4}),
    ],
)
def test_a_step_costs_the_stated_collectives(step, settings, expected):
    """Fails if a ZeRO stage communicates more often than documented, or not at all."""
    counts, _ = step(data_parallel=DataParallelConfig(**settings))
    assert counts == expected


def test_each_zero_stage_keeps_less(step):
    """Fails if a stage does not shard what it says, or sharding costs memory elsewhere."""
    held = [step(data_parallel=DataParallelConfig(zero=zero))[1] for zero in (0, 1, 2, 3)]
    whole, half = PARAMETERS * 4, PARAMETERS * 4 // 2
    assert [one.weights_bytes for one in held] == [whole, whole, whole, half]
    assert [one.gradients_bytes for one in held] == [whole, whole, half, half]
    assert [one.optimizer_bytes for one in held] == [2 * whole, 2 * half, 2 * half, 2 * half]
    assert {one.masters_bytes for one in held} == {0}


def test_bf16_halves_the_weights_and_keeps_masters(step):
    """Fails if mixed precision keeps fp32 weights beside the masters, or has none."""
    bf16 = MemoryConfig(precision="bf16")
    _, whole = step(memory=bf16)
    assert (whole.weights_bytes, whole.masters_bytes) == (PARAMETERS * 2, PARAMETERS * 4)
    _, part = step(memory=bf16, data_parallel=DataParallelConfig(zero=1))
    assert (part.weights_bytes, part.masters_bytes) == (PARAMETERS * 2, PARAMETERS * 4 // 2)

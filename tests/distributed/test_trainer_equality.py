"""A mesh of ranks must train exactly the model that one process trains."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.distributed.trainer_job import mesh_losses

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    PaceConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.fault_plan import parse_fault
from meshscope.reference_trainer.faults.ground_truth import truth_path
from meshscope.reference_trainer.model.model import Stage, StagePart
from meshscope.reference_trainer.model.pace import NoPace
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import MeshGroup
from meshscope.reference_trainer.run.data import global_batch

pytestmark = pytest.mark.distributed

MODEL = ModelConfig(layers=4, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16)
# Small buckets, so that several of them are on their way at once.
TRAIN = TrainConfig(steps=5, global_batch=8, learning_rate=0.5, bucket_bytes=4096)
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def plain_losses() -> list[float]:
    """Train the same model with nothing but autograd and SGD."""
    torch.set_num_threads(1)
    alone = MeshGroup(axis=Axis.TP, ranks=(0,), position=0, handle=cast("Any", None))
    model = Stage(
        MODEL,
        StagePart(layers=range(MODEL.layers), first=True, last=True),
        seed=TRAIN.seed,
        tp=alone,
        comm=Communicator(PerfectLinks()),
        runner=NoPace(),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=TRAIN.learning_rate)
    losses = []
    for step in range(TRAIN.steps):
        ids, labels = global_batch(TrainerConfig(model=MODEL, train=TRAIN), step)
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


CASES = {
    "pp2-1f1b": (ParallelLayout(pp=2), ScheduleConfig(kind="1f1b", microbatches=4)),
    "pp2-gpipe": (ParallelLayout(pp=2), ScheduleConfig(kind="gpipe", microbatches=4)),
    "pp2-uneven": (ParallelLayout(pp=2), ScheduleConfig(layers_per_stage=(3, 1))),
    "tp2": (ParallelLayout(tp=2), ScheduleConfig(microbatches=2)),
    "dp2": (ParallelLayout(dp=2), ScheduleConfig(microbatches=2)),
    "2x2x2-1f1b": (ParallelLayout(tp=2, pp=2, dp=2), ScheduleConfig(kind="1f1b")),
    "2x2x2-gpipe": (
        ParallelLayout(tp=2, pp=2, dp=2, order="dp-pp-cp-tp"),
        ScheduleConfig(kind="gpipe", microbatches=2),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mesh_trains_the_same_model_as_one_process(
    case: str, plain_losses: list[float], tmp_path: Path
) -> None:
    """Fails if a split of the model, a gradient sum or a schedule changes the training."""
    layout, schedule = CASES[case]
    config = TrainerConfig(layout=layout, model=MODEL, schedule=schedule, train=TRAIN)
    losses = mesh_losses(config, tmp_path)
    differences = [abs(a - b) for a, b in zip(losses, plain_losses, strict=True)]
    print(case, f"max loss difference {max(differences):.2e}")
    assert max(differences) < TOLERANCE


def test_the_losses_move_far_more_than_the_tolerance(plain_losses: list[float]) -> None:
    """Fails if the runs above could be equal without learning anything."""
    moves = [abs(b - a) for a, b in pairwise(plain_losses)]
    assert min(moves) > 100 * TOLERANCE


def test_applied_faults_are_logged_as_they_were(tmp_path: Path) -> None:
    """Fails if a fault is missing from the log, misplaced, or shorter than what was asked for."""
    config = TrainerConfig(
        layout=ParallelLayout(tp=2),
        model=MODEL,
        schedule=ScheduleConfig(microbatches=2),
        train=TRAIN,
        pace=PaceConfig(layer_ms=1.0),
        faults=(
            parse_fault("slow_rank:rank=1,delay_ms=7,start=1,stop=3"),
            parse_fault("slow_rank:rank=0,mode=compute,delay_ms=5,start=3,stop=4"),
            parse_fault("slow_link:rank=0,axis=tp,delay_ms=6,start=4"),
        ),
    )
    mesh_losses(config, tmp_path)
    for rank in range(2):
        records = [json.loads(line) for line in truth_path(tmp_path, rank).read_text().splitlines()]
        steps = [record for record in records if record["record"] == "step"]
        assert [step["fault_active"] for step in steps] == [False, True, True, True, True]
        faults = [record for record in records if record["record"] == "fault"]
        own_steps = {"slow_rank": {1, 2} if rank == 1 else {3}, "slow_link": {4}}
        for kind, expected in own_steps.items():
            assert {fault["step"] for fault in faults if fault["kind"] == kind} == expected
        for fault in faults:
            step = steps[fault["step"]]
            assert step["start_ns"] <= fault["start_ns"] < fault["end_ns"] <= step["end_ns"]
            since_ns = fault.get("issue_ns", fault["start_ns"])
            assert fault["end_ns"] - since_ns >= fault["requested_ns"]
        slow_microbatches = [f["microbatch"] for f in faults if f["kind"] == "slow_rank"]
        assert slow_microbatches == [0, 1] * len(own_steps["slow_rank"])

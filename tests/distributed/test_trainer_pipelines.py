"""Every schedule trains the model of one process: losses, and every gradient of the first step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.distributed.forked_ranks import join_ranks, start_ranks
from tests.distributed.pipeline_job import (
    gradients_by_name,
    train_and_keep_gradients,
    train_only,
    train_under_the_probe,
)

from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    PaceConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.schedule_config import ScheduleConfig
from meshscope.reference_trainer.model.model import Stage, StagePart
from meshscope.reference_trainer.model.pace import NoPace
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import MeshGroup
from meshscope.reference_trainer.replica.pipeline_parallel import own_stages
from meshscope.reference_trainer.run.data import global_batch

pytestmark = pytest.mark.distributed

TOLERANCE = 1e-5
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-v": 2, "dualpipe-v": 2}


def run_config(
    kind: str, *, tied: bool, layers: int = 4, axes: dict[str, int] | None = None, **schedule: Any
) -> TrainerConfig:
    """Return a run of four steps with small buckets, so that several are on their way."""
    return TrainerConfig(
        layout=ParallelLayout(vpp=CHUNKS[kind], **(axes or {"pp": 2})),
        model=ModelConfig(
            layers=layers, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16, tied=tied
        ),
        schedule=ScheduleConfig(kind=cast("Any", kind), **schedule),
        train=TrainConfig(steps=4, global_batch=8, learning_rate=0.5, bucket_bytes=4096),
    )


def run_ranks(target: Any, config: TrainerConfig, out: Path) -> list[float]:
    """Run one process per rank and return the losses that the reporter wrote."""
    world_size = config.layout.world_size
    ranks = start_ranks(target, [(config, rank, out) for rank in range(world_size)])
    assert join_ranks(ranks) == [0] * world_size
    return cast("list[float]", json.loads((out / "losses.json").read_text())["loss"])


def plain_training(config: TrainerConfig) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train the same model with nothing but autograd and SGD."""
    torch.set_num_threads(1)
    alone = MeshGroup(axis=Axis.TP, ranks=(0,), position=0, handle=cast("Any", None))
    model = Stage(
        config.model,
        StagePart(layers=range(config.model.layers), first=True, last=True),
        seed=config.train.seed,
        tp=alone,
        comm=Communicator(PerfectLinks()),
        runner=NoPace(),
    )
    assert model.embedding is not None
    assert model.head is not None
    if config.model.tied:
        model.head.output = model.embedding.tokens
    optimizer = torch.optim.SGD(model.parameters(), lr=config.train.learning_rate)
    losses, gradients = [], {}
    for step in range(config.train.steps):
        ids, labels = global_batch(config, step)
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients or gradients_by_name(model, 0)
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def assert_same_training(config: TrainerConfig, out: Path) -> None:
    """Compare the losses, and each gradient that some rank has, with plain training."""
    losses = run_ranks(train_and_keep_gradients, config, out)
    plain_losses, plain_gradients = plain_training(config)
    difference = max(abs(a - b) for a, b in zip(losses, plain_losses, strict=True))
    print(f"max loss difference {difference:.2e}")
    assert difference < TOLERANCE
    seen = set()
    for rank in range(config.layout.world_size):
        for name, gradient in torch.load(out / f"gradients{rank}.pt").items():
            # On its own stage the head of a tied model is the embedding's copy.
            tied_copy = config.model.tied and name == "head.output"
            expected = plain_gradients["embedding.tokens" if tied_copy else name]
            seen.add("embedding.tokens" if tied_copy else name)
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6, msg=name)
    assert seen == set(plain_gradients)


@pytest.mark.parametrize("kind", CHUNKS)
def test_each_schedule_trains_a_tied_model_as_one_process_does(kind: str, tmp_path: Path) -> None:
    """Fails if an order, a split backward or the sum over the tied copies changes the training."""
    assert_same_training(run_config(kind, tied=True), tmp_path)


def test_three_chunks_per_rank_train_the_same_model(tmp_path: Path) -> None:
    """Fails if an interleaved order, or the split of its stages, holds for two chunks only."""
    two = run_config("interleaved-1f1b", tied=False, layers=6)
    config = replace(two, layout=replace(two.layout, vpp=3))
    assert config.layers_per_stage == (1,) * 6
    assert_same_training(config, tmp_path)


def test_blocks_split_by_weight_train_the_same_model(tmp_path: Path) -> None:
    """Fails if stages of unequal depth draw other weights or send other shapes."""
    config = run_config("zb-h1", tied=False, head_weight=2.0)
    assert config.layers_per_stage == (3, 1)
    assert_same_training(config, tmp_path)


def test_a_pace_changes_no_gradient_of_a_split_backward(tmp_path: Path) -> None:
    """Fails if the borders of paced parts get in the way of a schedule that splits backwards."""
    config = replace(run_config("zb-v", tied=False), pace=PaceConfig(layer_ms=0.5, head_ms=0.5))
    assert_same_training(config, tmp_path)


@pytest.mark.slow
@pytest.mark.sampled(
    keep=(
        "1f1b",
        "zb-v",
    )
)
@pytest.mark.parametrize("kind", CHUNKS)
def test_each_schedule_works_on_four_stages_of_ranks(kind: str, tmp_path: Path) -> None:
    """Fails if middle stages, which neither embed nor compute a loss, are wired wrongly."""
    config = run_config(kind, tied=True, layers=8, axes={"pp": 4}, microbatches=8)
    assert_same_training(config, tmp_path)


@pytest.mark.slow
@pytest.mark.sampled(
    keep=(
        "interleaved-1f1b-False",
        "dualpipe-v-False",
        "zb-v-True",
    )
)
@pytest.mark.parametrize(
    ("kind", "tied"), [*((kind, False) for kind in CHUNKS), ("1f1b", True), ("zb-v", True)]
)
def test_each_schedule_works_with_the_other_axes(kind: str, tied: bool, tmp_path: Path) -> None:
    """Fails if a schedule and tensor or data parallelism do not fit together."""
    config = run_config(kind, tied=tied, axes={"tp": 2, "pp": 2, "dp": 2})
    losses = run_ranks(train_only, config, tmp_path)
    plain_losses, _ = plain_training(config)
    assert max(abs(a - b) for a, b in zip(losses, plain_losses, strict=True)) < TOLERANCE


def test_the_probe_sees_which_stage_chunk_and_microbatch_each_span_is(tmp_path: Path) -> None:
    """Fails if a recorded run does not tell its schedule, or spans cannot be separated."""
    config = run_config("zb-v", tied=True)
    run_ranks(train_under_the_probe, config, tmp_path)
    capture = read_run(tmp_path / "run")
    assert capture.manifest["schedule"] == "zb-v"
    assert capture.manifest["layout"]["vpp"] == 2
    spans = capture.tables["span"].to_pandas()
    passes = spans[(spans["stage"] >= 0) & (spans["step"] == 2) & (spans["kind"] != "forward")]
    seen = set(
        zip(
            *(passes[name] for name in ("rank", "stage", "chunk", "kind", "microbatch")),
            strict=True,
        )
    )
    assert seen == {
        (rank, stage, chunk, f"backward_{half}", index)
        for rank in range(2)
        for chunk, stage in enumerate(own_stages(config, rank))
        for half in ("input", "weight")
        for index in range(4)
    }

"""Axes, schedules, sharding and memory settings together train the model of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed.replica_job import mesh_run

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.config.presets import load_config

pytestmark = pytest.mark.distributed

LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-4
BASE = """
[model]
layers = 4
hidden = 32
ffn = 64
heads = 4
vocab = 64
seq_len = 16
[train]
steps = 4
global_batch = 16
learning_rate = 0.5
max_grad_norm = inf
bucket_bytes = 4096
"""
SHAPES_THE_MODEL = ("model.", "moe.", "memory.precision")

PAIRS = {
    "split backward, gradients summed in time": "pp=2 schedule.kind=zb-h1 train.max_grad_norm=0.5",
    "tokens split, optimizer sharded": "cp=2 data_parallel.zero=1",
    "tokens split, weights sharded": "cp=2 data_parallel.zero=3",
    "experts shared, blocks run again": "dp=2 ep=2 moe.experts=4 memory.recompute=full",
    "tokens split between layers, halves run again": (
        "tp=2 tensor.sequence_parallel=true memory.recompute=selective"
    ),
    "experts shared, tokens split": "cp=2 ep=2 moe.experts=4",
    "tied rows of the vocabulary": "tp=2 model.tied=true data_parallel.zero=1",
}
MESHES = {
    "2x2x2, zero bubble, sequence parallel, ZeRO-1": (
        "tp=2 pp=2 dp=2 schedule.kind=zb-h1 tensor.sequence_parallel=true data_parallel.zero=1"
    ),
    "2x2x2, zero bubble, sequence parallel, ZeRO-2": (
        "tp=2 pp=2 dp=2 schedule.kind=zb-h1 tensor.sequence_parallel=true data_parallel.zero=2"
    ),
    "V, sequence parallel, ZeRO-2": (
        "tp=2 pp=2 vpp=2 dp=2 schedule.kind=zb-v tensor.sequence_parallel=true data_parallel.zero=2"
    ),
    "hybrid sharding, interleaved": (
        "pp=2 vpp=2 dp=4 schedule.kind=interleaved-1f1b data_parallel.zero=3 "
        "data_parallel.shard_ranks=2"
    ),
    "tied, DualPipeV, ZeRO-2": (
        "pp=2 vpp=2 dp=2 schedule.kind=dualpipe-v model.tied=true data_parallel.zero=2"
    ),
    "experts of split sequences, tensor and sequence parallel, run again": (
        "tp=2 cp=2 ep=2 moe.experts=4 tensor.sequence_parallel=true memory.recompute=full"
    ),
    "axes in another order, sums over two of them in parts": (
        "tp=2 dp=2 layout.order=tp-pp-cp-dp tensor.sequence_parallel=true data_parallel.zero=1"
    ),
    "replicas along two axes in another order, hybrid sharding": (
        "dp=2 cp=2 layout.order=pp-cp-dp-tp data_parallel.zero=3 data_parallel.shard_ranks=2"
    ),
    "context and pipeline": "cp=2 pp=2",
    "context by all-to-all and a split backward": (
        "cp=2 pp=2 context.form=all_to_all schedule.kind=zb-h1"
    ),
    "experts in a pipeline with a split backward": (
        "dp=2 ep=2 pp=2 moe.experts=4 schedule.kind=zb-h1 data_parallel.zero=1"
    ),
    "experts of sequence-parallel ranks": (
        "dp=2 ep=2 tp=2 moe.experts=4 tensor.sequence_parallel=true data_parallel.zero=2"
    ),
    "sequence parallel, weights sharded": (
        "tp=2 dp=2 tensor.sequence_parallel=true data_parallel.zero=3"
    ),
    "tied, V-shaped, vocabulary split": (
        "tp=2 pp=2 vpp=2 schedule.kind=zb-v model.tied=true data_parallel.zero=1"
    ),
    "tied, tokens split, gradients sharded": "pp=2 cp=2 dp=2 model.tied=true data_parallel.zero=2",
    "interleaved, recomputed": (
        "tp=2 pp=2 vpp=2 schedule.kind=interleaved-1f1b tensor.sequence_parallel=true "
        "memory.recompute=full memory.offload=true"
    ),
}


def compare(settings: str, out: Path) -> None:
    """Compare losses and gradient norms of a mesh with those of one process."""
    overrides = [
        item if "." in item.split("=", 1)[0] else f"layout.{item}" for item in settings.split()
    ]
    mesh = load_config(BASE, overrides=overrides, faults=(), where="test")
    of_the_model = [item for item in overrides if item.startswith((*SHAPES_THE_MODEL, "train."))]
    alone = load_config(BASE, overrides=of_the_model, faults=(), where="test")
    runs = []
    for name, config in (("mesh", mesh), ("alone", alone)):
        (out / name).mkdir()
        runs.append(mesh_run(config, out / name))
    found, expected = runs
    assert found.losses == pytest.approx(expected.losses, abs=LOSS_TOLERANCE, rel=0)
    assert found.norms == pytest.approx(expected.norms, rel=NORM_TOLERANCE)


@pytest.mark.parametrize("case", PAIRS)
def test_two_ranks_with_several_settings_train_the_model_of_one(case: str, tmp_path: Path) -> None:
    """Fails if two features that work alone do not work together."""
    compare(PAIRS[case], tmp_path)


@pytest.mark.slow
@pytest.mark.sampled(
    keep=(
        "2x2x2, zero bubble, sequence parallel, ZeRO-2",
        "tied, DualPipeV, ZeRO-2",
        "experts of split sequences, tensor and sequence parallel, run again",
        "axes in another order, sums over two of them in parts",
        "context by all-to-all and a split backward",
    )
)
@pytest.mark.parametrize("case", MESHES)
def test_meshes_with_several_settings_train_the_model_of_one(case: str, tmp_path: Path) -> None:
    """Fails if features compose on two ranks, but not on a mesh with several axes."""
    compare(MESHES[case], tmp_path)


@pytest.mark.parametrize(
    ("settings", "field", "remedy"),
    [
        (
            "layout.dp=2 layout.ep=2 moe.experts=4 data_parallel.zero=3",
            "data_parallel.zero",
            "layout.ep to 1",
        ),
        ("layout.dp=2 model.tied=true data_parallel.zero=3", "data_parallel.zero", "model.tied"),
        (
            "layout.cp=2 layout.dp=2 data_parallel.zero=3 data_parallel.shard_ranks=3",
            "data_parallel.shard_ranks",
            "divisor of layout.dp x layout.cp",
        ),
    ],
)
def test_what_cannot_work_together_names_the_fields(settings, field, remedy) -> None:
    """Fails if a combination that would train another model is accepted."""
    with pytest.raises(ConfigError, match=f"^{field}: .*{remedy}"):
        load_config(BASE, overrides=settings.split(), faults=(), where="test")

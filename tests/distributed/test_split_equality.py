"""Splits of a layer, a sequence or the experts must not change what is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.distributed.trainer_job import (
    mesh_grads,
    mesh_losses,
    plain_grads,
    plain_losses,
    use_two_experts,
)
from torch import Tensor

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import ModelConfig, TrainConfig, TrainerConfig
from meshscope.reference_trainer.config.parallel_config import (
    ContextConfig,
    MoeConfig,
    TensorConfig,
)
from meshscope.reference_trainer.config.schedule_config import ScheduleConfig

pytestmark = pytest.mark.distributed

MODEL = ModelConfig(layers=2, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16)
TRAIN = TrainConfig(steps=4, global_batch=8, learning_rate=0.5, bucket_bytes=4096)
MOE = MoeConfig(experts=4, experts_per_token=2, balance_weight=0.1)
SEQUENCE = TensorConfig(sequence_parallel=True)
ALL_TO_ALL = ContextConfig(form="all_to_all")
TOLERANCE = 1e-5


def run(layout: dict[str, int | str], **sections: object) -> TrainerConfig:
    """Return a run of the small model over a mesh."""
    return TrainerConfig(
        layout=ParallelLayout(**layout),  # type: ignore[arg-type]
        train=TRAIN,
        **{"model": MODEL, "schedule": ScheduleConfig(microbatches=2), **sections},  # type: ignore[arg-type]
    )


SMALL = {
    "sequence": run({"tp": 2}, tensor=SEQUENCE),
    "ring": run({"cp": 2}),
    "all-to-all": run({"cp": 2}, context=ALL_TO_ALL),
    "experts": run({"dp": 2, "ep": 2}, moe=MOE),
}
DEEP = replace(MODEL, layers=4)
LARGE = {
    "tp2-moe": run({"tp": 2}, moe=MOE),
    "cp4-ring": run({"cp": 4}),
    "tp2-cp2-ring": run({"tp": 2, "cp": 2}, tensor=SEQUENCE),
    "tp2-dp2-cp2-ep4": run({"tp": 2, "dp": 2, "cp": 2, "ep": 4}, tensor=SEQUENCE, moe=MOE),
    "dp4-ep2": run({"dp": 4, "ep": 2}, moe=MOE),
    "pp2-tp2-cp2-ring-zb-h1": run(
        {"pp": 2, "tp": 2, "cp": 2},
        tensor=SEQUENCE,
        schedule=ScheduleConfig(kind="zb-h1", microbatches=2),
    ),
    "pp2-tp2-cp2-all-to-all-interleaved": run(
        {"pp": 2, "vpp": 2, "tp": 2, "cp": 2},
        model=DEEP,
        context=ALL_TO_ALL,
        schedule=ScheduleConfig(kind="interleaved-1f1b", microbatches=2),
    ),
    "pp2-dp2-cp2-ring-tied": run(
        {"pp": 2, "dp": 2, "cp": 2, "order": "dp-pp-cp-tp"}, model=replace(MODEL, tied=True)
    ),
    "pp2-dp2-ep2-zb-v": run(
        {"pp": 2, "vpp": 2, "dp": 2, "ep": 2},
        model=DEEP,
        moe=MOE,
        schedule=ScheduleConfig(kind="zb-v", microbatches=4),
    ),
    "pp2-tp2-sequence-tied-1f1b": run(
        {"pp": 2, "tp": 2}, model=replace(MODEL, tied=True), tensor=SEQUENCE
    ),
}


def assert_same_losses(config: TrainerConfig, out: Path) -> None:
    """Train over the mesh and with plain autograd, and compare the losses of all steps."""
    expected = plain_losses(config)
    found = mesh_losses(config, out)
    differences = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    print(f"max loss difference {max(differences):.2e}")
    assert max(differences) < TOLERANCE


def assert_same_norms(expected: dict[str, Tensor], found: list[dict[str, Tensor]]) -> None:
    """Compare the norm of each gradient with that of the ranks' parts together."""
    for name, whole in expected.items():
        parts = [grads[name] for grads in found]
        if parts[0].shape == whole.shape:
            norms = [float(part.norm()) for part in parts]
        else:
            # Shards of one replica: as many ranks as it takes to hold the whole.
            copies = len(parts) * parts[0].numel() / whole.numel()
            norms = [(sum(float(part.norm()) ** 2 for part in parts) / copies) ** 0.5]
        assert norms == pytest.approx([float(whole.norm())] * len(norms), rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize("case", SMALL)
def test_two_ranks_train_the_model_of_one(case: str, tmp_path: Path) -> None:
    """Fails if a split changes a loss, a gradient or an update."""
    assert_same_losses(SMALL[case], tmp_path)


@pytest.mark.slow
@pytest.mark.sampled(
    keep=(
        "cp4-ring",
        "tp2-dp2-cp2-ep4",
        "pp2-tp2-cp2-all-to-all-interleaved",
        "pp2-dp2-ep2-zb-v",
    )
)
@pytest.mark.parametrize("case", LARGE)
def test_axes_train_the_same_model_together(case: str, tmp_path: Path) -> None:
    """Fails if a split holds alone and not together with another axis."""
    assert_same_losses(LARGE[case], tmp_path)


@pytest.mark.slow
@pytest.mark.sampled(
    keep=(
        "ring",
        "experts",
        "tp2-moe",
    )
)
@pytest.mark.parametrize("case", [*SMALL, "tp2-moe", "tp2-cp2-ring"])
def test_every_gradient_has_the_norm_of_the_plain_one(case: str, tmp_path: Path) -> None:
    """Fails if a parameter's gradient is summed too often or not over all ranks."""
    config = (SMALL | LARGE)[case]
    assert_same_norms(plain_grads(config), mesh_grads(config, tmp_path))


@pytest.mark.slow
def test_experts_without_a_token_hold_nobody_up(tmp_path: Path) -> None:
    """Fails if a rank whose experts get nothing hangs, or has another gradient than zero."""
    config = SMALL["experts"]
    found = mesh_grads(config, tmp_path, use_two_experts)
    assert not found[1]["blocks.0.mlp.up"].any()
    assert_same_norms(plain_grads(config, use_two_experts), found)


@pytest.mark.slow
def test_a_capacity_drops_the_same_tokens_on_any_mesh_of_the_same_microbatches(
    tmp_path: Path,
) -> None:
    """Fails if what is dropped depends on who holds the experts."""
    moe = MoeConfig(experts=4, capacity_factor=0.5)
    losses = []
    for layout, microbatches in (({}, 4), ({"dp": 2, "ep": 2}, 2)):
        config = run(layout, moe=moe, schedule=ScheduleConfig(microbatches=microbatches))
        out = tmp_path / f"{microbatches}"
        out.mkdir()
        losses.append(mesh_losses(config, out))
    assert losses[1] == pytest.approx(losses[0], abs=TOLERANCE)
    dropless = run({}, moe=MoeConfig(experts=4))
    assert losses[0] != pytest.approx(plain_losses(dropless), abs=TOLERANCE)

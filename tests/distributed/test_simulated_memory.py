"""A simulated rank against the same rank of a real run."""

from __future__ import annotations

import json

import pytest
from tests.distributed.simulation_job import real_step, summary
from tests.distributed.trainer_job import run_ranks

from meshscope.reference_trainer.config.presets import load_config, preset_text
from meshscope.reference_trainer.simulation.simulation import simulate_rank

pytestmark = pytest.mark.distributed

RUN = (
    "memory.precision=bf16",
    "train.optimizer=adamw",
    "train.global_batch=8",
    "model.layers=4",
    "schedule.microbatches=4",
)
TWO_REPLICAS = ("layout.pp=1", "layout.dp=2")


@pytest.mark.sampled(keep=("overrides0", "overrides1"))
@pytest.mark.parametrize(
    "overrides",
    [
        ("layout.pp=2",),
        (*TWO_REPLICAS, "data_parallel.zero=2", "memory.recompute=selective"),
        pytest.param((*TWO_REPLICAS, "data_parallel.zero=3"), marks=pytest.mark.slow),
        pytest.param(
            ("layout.pp=1", "layout.tp=2", "tensor.sequence_parallel=true"), marks=pytest.mark.slow
        ),
        pytest.param(("layout.pp=2", "schedule.kind=zb-v", "layout.vpp=2"), marks=pytest.mark.slow),
    ],
)
def test_a_simulated_rank_holds_what_a_real_one_holds(tmp_path, overrides):
    """Fails if fake tensors, or a mesh of one process, change a byte of what a rank holds."""
    config = load_config(preset_text("tiny"), overrides=(*RUN, *overrides))
    run_ranks(real_step, config, tmp_path)
    for rank in range(2):
        found = summary(simulate_rank(config, rank, every_microbatch=True))
        real = json.loads((tmp_path / f"{rank}.json").read_text())
        for name in ("held", "order", "payload"):
            assert json.loads(json.dumps(found[name])) == real[name]
        # gloo lets go of some buffers a moment after the wait for them.
        assert found["activations"] == pytest.approx(real["activations"], rel=0.01)
        for name in ("weights", "pipeline"):
            assert found["peaks"][name] == pytest.approx(real["peaks"][name], rel=0.01)
        assert found["peaks"]["update"] <= real["peaks"]["update"]

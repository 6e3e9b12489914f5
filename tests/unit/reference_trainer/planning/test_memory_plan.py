"""Memory by formula, against published figures and against built stages."""

from __future__ import annotations

import pytest

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import ModelConfig, TrainConfig, TrainerConfig
from meshscope.reference_trainer.config.presets import load_config, preset_text
from meshscope.reference_trainer.config.schedule_config import ScheduleConfig
from meshscope.reference_trainer.model.model import Stage
from meshscope.reference_trainer.model.pace import NoPace
from meshscope.reference_trainer.planning.memory_plan import memory_plan
from meshscope.reference_trainer.planning.parameter_counts import block_parameters, parameter_count
from meshscope.reference_trainer.replica.pipeline_parallel import stage_part

GPT3 = ModelConfig(
    layers=96, hidden=12288, ffn=49152, heads=96, vocab=51200, seq_len=2048, tied=True
)


def plan_of(model, microbatches, **axes):
    """Return the memory of a 1F1B run with microbatches of one sequence."""
    layout = ParallelLayout(**axes)
    return memory_plan(
        TrainerConfig(
            layout=layout,
            model=model,
            schedule=ScheduleConfig(microbatches=microbatches),
            train=TrainConfig(global_batch=layout.dp * microbatches),
        )
    )


def test_gpt3_on_512_gpus_has_2_7_billion_parameters_each():
    """Fails if parameters per GPU, or their bytes in bf16, are not the published ones."""
    middle = plan_of(GPT3, 32, tp=8, pp=8, dp=8)[3]
    assert middle.parameters / 1e9 == pytest.approx(2.7, abs=0.05)
    assert middle.weight_bytes / 1e9 == pytest.approx(5.4, abs=0.05)


def test_gpt3_on_1024_gpus_needs_sixteen_gigabytes_for_adam():
    """Fails if an optimizer that is not sharded is not 12 bytes per parameter, to the digit."""
    middle = plan_of(GPT3, 64, tp=8, pp=16, dp=8)[7]
    assert middle.weight_bytes / 1e9 == pytest.approx(2.7, abs=0.05)
    assert middle.gradient_bytes / 1e9 == pytest.approx(2.7, abs=0.05)
    shared_bytes = 12 * parameter_count(GPT3) / (8 * 16)
    assert [f"{size / 1e9:.1f}" for size in (middle.adam_bytes, shared_bytes)] == ["16.3", "16.4"]


def test_zero1_spreads_the_optimizer_over_the_replicas():
    """Fails if a model of 100 billion does not need 3.1 + 3.1 + 2.3 GB per GPU."""
    model = ModelConfig(
        layers=80, hidden=10240, ffn=40960, heads=80, vocab=51200, seq_len=2048, tied=True
    )
    middle = plan_of(model, 32, tp=8, pp=8, dp=8)[3]
    assert parameter_count(model) / 1e9 == pytest.approx(101, abs=1)
    assert middle.weight_bytes / 1e9 == pytest.approx(3.1, abs=0.1)
    assert middle.gradient_bytes / 1e9 == pytest.approx(3.1, abs=0.1)
    assert middle.adam_zero1_bytes / 1e9 == pytest.approx(2.3, abs=0.1)


@pytest.mark.parametrize(
    ("preset", "billions"), [("gpt3-175b", 175), ("mt-nlg-530b", 530), ("llama3-405b", 405)]
)
def test_published_models_have_their_published_size(preset, billions):
    """Fails if a preset describes another model than its name says."""
    model = load_config(preset_text(preset)).model
    assert parameter_count(model) / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize("kind", ["1f1b", "interleaved-1f1b", "zb-v"])
@pytest.mark.parametrize("tied", [False, True])
def test_planned_parameters_are_those_of_the_built_stages(kind, tied, comm, alone):
    """Fails if the plan and the model disagree on what a stage holds."""
    config = TrainerConfig(
        layout=ParallelLayout(pp=2, vpp=1 if kind == "1f1b" else 2),
        model=ModelConfig(layers=5, hidden=16, ffn=48, heads=2, vocab=40, seq_len=8, tied=tied),
        schedule=ScheduleConfig(kind=kind),
    )
    for plan in memory_plan(config):
        built = sum(
            parameter.numel()
            for index in plan.stages
            for parameter in Stage(
                config.model,
                stage_part(config, index),
                seed=1,
                tp=alone,
                comm=comm,
                runner=NoPace(),
            ).parameters()
        )
        shared = config.model.vocab * config.model.hidden if tied and len(plan.stages) > 1 else 0
        both_ends = {0, config.stages - 1} <= set(plan.stages)
        assert plan.parameters == built - shared * both_ends


def test_planned_blocks_are_split_as_tensor_parallelism_splits_them(comm, group_of_two):
    """Fails if the plan splits what every rank holds, or the other way round."""
    config = TrainerConfig(model=ModelConfig(layers=3), layout=ParallelLayout(pp=3))
    middle = Stage(
        config.model, stage_part(config, 1), seed=1, tp=group_of_two, comm=comm, runner=NoPace()
    )
    built = sum(parameter.numel() for parameter in middle.parameters())
    assert block_parameters(config.model, tp=2) == built


def test_activations_follow_the_published_formula():
    """Fails if activations of a block are not s b h (8 + 24 / t), or s b h 32 / t with the rest."""
    plans = plan_of(GPT3, 8, tp=8, pp=8, dp=1)
    unit = 2048 * 12288
    blocks_held = 12 * 8
    assert plans[0].microbatches_held == 8
    assert plans[0].activations.kept == pytest.approx(blocks_held * unit * (8 + 24 / 8))
    assert plans[0].activations.sequence_parallel == pytest.approx(blocks_held * unit * 32 / 8)
    assert plans[0].activations.recomputed == pytest.approx(blocks_held * unit * 2)
    logits = 4 * 2048 * 51200 / 8
    assert plans[-1].activations.recomputed == pytest.approx(12 * unit * 2 + logits)

"""Which layers a stage holds."""

from __future__ import annotations

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import ModelConfig, TrainerConfig
from meshscope.reference_trainer.config.schedule_config import ScheduleConfig
from meshscope.reference_trainer.replica.pipeline_parallel import own_stages, stage_part


def split(layers, stages, **schedule):
    """Return the part of every stage."""
    config = TrainerConfig(
        layout=ParallelLayout(pp=stages),
        model=ModelConfig(layers=layers),
        schedule=ScheduleConfig(**schedule),
    )
    return [stage_part(config, stage) for stage in range(stages)]


def test_layers_are_split_evenly_unless_reported_otherwise():
    """Fails if a layer is in two stages or in none, or a split by hand or weight is ignored."""
    assert [len(part.layers) for part in split(7, 3)] == [3, 2, 2]
    by_hand = split(16, 4, layers_per_stage=(3, 5, 5, 3))
    assert [part.layers for part in by_hand] == [range(3), range(3, 8), range(8, 13), range(13, 16)]
    assert [len(part.layers) for part in split(6, 2, stage_weights=(1.0, 2.0))] == [2, 4]


def test_only_the_outer_stages_hold_embedding_and_head():
    """Fails if an edge part is missing or doubled."""
    parts = split(3, 3)
    assert [part.first for part in parts] == [True, False, False]
    assert [part.last for part in parts] == [False, False, True]


def test_in_a_v_the_first_rank_holds_both_ends():
    """Fails if a V-shaped schedule is run on the stages of a looped one."""
    config = TrainerConfig(layout=ParallelLayout(pp=2, vpp=2), schedule=ScheduleConfig(kind="zb-v"))
    assert [own_stages(config, position) for position in range(2)] == [(0, 3), (1, 2)]

"""Which layers a stage holds, and in which order it works."""

from __future__ import annotations

import pytest

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.compat import FORWARD
from meshscope.reference_trainer.config import ModelConfig, ScheduleConfig, TrainerConfig
from meshscope.reference_trainer.pipeline_parallel import (
    gpipe_order,
    one_f_one_b_order,
    stage_part,
)


def written(order):
    """Return an order as text: F2 is the forward of microbatch 2."""
    return " ".join(
        f"{'F' if action.computation_type == FORWARD else 'B'}{action.microbatch_index}"
        for action in order
    )


def test_gpipe_runs_all_forwards_first():
    """Fails if the schedule that the run reports is not the one that it runs."""
    assert written(gpipe_order(1, 4, 3)) == "F0 F1 F2 B0 B1 B2"


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"),
        (1, "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"),
        (2, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"),
    ],
)
def test_1f1b_has_its_three_phases_on_every_stage(stage, expected):
    """Fails if warm-up, steady phase or cool-down of a stage has the wrong length."""
    assert written(one_f_one_b_order(stage, 3, 5)) == expected


def test_1f1b_with_fewer_microbatches_than_stages_is_all_warmup():
    """Fails if short steps lose or repeat a microbatch."""
    assert written(one_f_one_b_order(0, 4, 2)) == "F0 F1 B0 B1"


def split(layers, stages, per_stage=()):
    """Return the first and last layer of every stage."""
    config = TrainerConfig(
        layout=ParallelLayout(pp=stages),
        model=ModelConfig(layers=layers),
        schedule=ScheduleConfig(layers_per_stage=per_stage),
    )
    return [stage_part(config, stage) for stage in range(stages)]


def test_layers_are_split_evenly_unless_told_otherwise():
    """Fails if a layer is in two stages or in none, or a manual split is ignored."""
    assert [len(part.layers) for part in split(7, 3)] == [3, 2, 2]
    assert [part.layers for part in split(4, 2, (3, 1))] == [range(3), range(3, 4)]


def test_only_the_outer_stages_hold_embedding_and_head():
    """Fails if an edge part is missing or doubled."""
    parts = split(3, 3)
    assert [part.first for part in parts] == [True, False, False]
    assert [part.last for part in parts] == [False, False, True]

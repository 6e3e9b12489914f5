"""In which order a pipeline rank works, and which stages it holds."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import get_args

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from meshscope.analyze.formulas.schedules import (
    SCHEDULES,
    Pass,
    PassKind,
    fill_and_drain_frac,
    rank_of_last_stage,
    rank_orders,
    schedule_names,
    stages_of_rank,
)
from meshscope.commands.plan import Schedule as ScheduleOption
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import ScheduleKind
from meshscope.reference_trainer.config.schedule_config import ScheduleConfig

CHUNKS = {kind.value: one.chunks or 2 for kind, one in SCHEDULES.items()}

ORACLES = {
    "interleaved-1f1b": torch_schedules.ScheduleInterleaved1F1B,
    "zb-h1": torch_schedules.ScheduleInterleavedZeroBubble,
    "zb-v": torch_schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": torch_schedules.ScheduleDualPipeV,
}
"""torch's own generators of the same published schedules."""


def defined_sizes():
    """Return schedules with ranks and microbatches that they are defined for."""
    least = {"dualpipe-v": 2, "interleaved-1f1b": 1}
    return [
        (kind, ranks, microbatches)
        for kind in ORACLES
        for ranks in (2, 4)
        for microbatches in (1, 2, 4, 8, 16)
        if microbatches >= least.get(kind, 0) * ranks
    ]


@pytest.mark.parametrize(("kind", "ranks", "microbatches"), defined_sizes())
def test_orders_are_those_of_torch(kind, ranks, microbatches):
    """Fails if an order departs from the published one as torch reads it."""
    chunks = CHUNKS[kind]
    schedule = SimpleNamespace(
        pp_group_size=ranks,
        num_stages=ranks * chunks,
        n_local_stages=chunks,
        _n_microbatches=microbatches,
        microbatches_per_round=microbatches // max(1, microbatches // ranks),
    )
    for rank, order in enumerate(rank_orders(kind, ranks, microbatches, chunks)):
        actions = ORACLES[kind]._calculate_single_rank_operations(schedule, rank)
        flat = [part for action in actions if action for part in action.sub_actions or (action,)]
        assert [str(one) for one in order] == [str(action) for action in flat]


@pytest.mark.parametrize("kind", CHUNKS)
def test_every_stage_does_every_microbatch_once(kind):
    """Fails if a pass is lost, repeated, or done by a rank that does not hold the stage."""
    ranks, microbatches = 3, 6
    counts = Counter()
    for rank, order in enumerate(rank_orders(kind, ranks, microbatches, CHUNKS[kind])):
        assert {one.stage for one in order} == set(stages_of_rank(kind, rank, ranks, CHUNKS[kind]))
        counts.update(order)
    assert set(counts.values()) == {1}
    for stage in range(ranks * CHUNKS[kind]):
        for index in range(microbatches):
            whole = counts[Pass(PassKind.BACKWARD, stage, index)]
            halves = [
                counts[Pass(half, stage, index)] for half in (PassKind.INPUT, PassKind.WEIGHT)
            ]
            assert counts[Pass(PassKind.FORWARD, stage, index)] == 1
            assert [whole, *halves] in ([1, 0, 0], [0, 1, 1])


@pytest.mark.parametrize("kind", CHUNKS)
def test_the_last_stage_is_where_it_is_said_to_be(kind):
    """Fails if the loss is read on a rank that does not compute it."""
    last_rank = rank_of_last_stage(kind, 4)
    assert 4 * CHUNKS[kind] - 1 in stages_of_rank(kind, last_rank, 4, CHUNKS[kind])


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks", "frac"),
    [(1, 8, 1, 0.0), (4, 4, 1, 3 / 7), (8, 16, 1, 7 / 23), (4, 8, 2, 3 / 19)],
)
def test_ideal_bubble(stages, microbatches, chunks, frac):
    """The unavoidable part of the waiting would be misstated."""
    assert fill_and_drain_frac(stages, microbatches, chunks) == frac


def test_the_trainer_and_the_plan_offer_every_schedule():
    """Fails when a new schedule has its record, but cannot be trained or asked for by name."""
    assert [ScheduleConfig(kind=kind.value).kind for kind in SCHEDULES] == list(SCHEDULES)
    for kind in set(ScheduleKind) - set(SCHEDULES):
        with pytest.raises(ConfigError, match=f"Choose {schedule_names()}"):
            ScheduleConfig(kind=kind.value)
    (option,) = [one for one in get_args(ScheduleOption)[1:] if one.help]
    assert set(re.split(", | or ", option.help[:-1])) == set(SCHEDULES)

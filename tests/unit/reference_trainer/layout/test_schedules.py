"""In which order a pipeline rank works, and which stages it holds."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from meshscope.reference_trainer.layout.schedules import (
    Pass,
    PassKind,
    pipeline_orders,
    rank_of_last_stage,
    stages_of_rank,
)

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-v": 2, "dualpipe-v": 2}

ORACLES = {
    "interleaved-1f1b": torch_schedules.ScheduleInterleaved1F1B,
    "zb-h1": torch_schedules.ScheduleInterleavedZeroBubble,
    "zb-v": torch_schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": torch_schedules.ScheduleDualPipeV,
}
"""torch's own generators of the same published schedules."""


def written(order):
    """Return an order without stages: F2 is the forward of microbatch 2."""
    return " ".join(f"{one.kind}{one.microbatch}" for one in order)


def test_gpipe_runs_all_forwards_first():
    """Fails if the schedule that the run reports is not the one that it runs."""
    assert written(pipeline_orders("gpipe", 4, 3)[1]) == "F0 F1 F2 B0 B1 B2"


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"),
        (1, "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"),
        (2, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"),
    ],
)
def test_1f1b_has_its_three_phases_on_every_rank(rank, expected):
    """Fails if warm-up, steady phase or cool-down of a rank has the wrong length."""
    assert written(pipeline_orders("1f1b", 3, 5)[rank]) == expected


def test_1f1b_with_fewer_microbatches_than_stages_is_all_warmup():
    """Fails if short steps lose or repeat a microbatch."""
    assert written(pipeline_orders("1f1b", 4, 2)[0]) == "F0 F1 B0 B1"


def test_the_weights_of_zb_h1_lag_by_the_rank():
    """Fails if ZB-H1 does weights when a neighbour waits for inputs."""
    first, second = pipeline_orders("zb-h1", 2, 3)
    assert written(first) == "F0 F1 I0 W0 F2 I1 W1 I2 W2"
    assert written(second) == "F0 I0 F1 I1 W0 F2 I2 W1 W2"


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
    for rank, order in enumerate(pipeline_orders(kind, ranks, microbatches, chunks)):
        actions = ORACLES[kind]._calculate_single_rank_operations(schedule, rank)
        flat = [part for action in actions if action for part in action.sub_actions or (action,)]
        assert [str(one) for one in order] == [str(action) for action in flat]


@pytest.mark.parametrize("kind", CHUNKS)
def test_every_stage_does_every_microbatch_once(kind):
    """Fails if a pass is lost, repeated, or done by a rank that does not hold the stage."""
    ranks, microbatches = 3, 6
    counts = Counter()
    for rank, order in enumerate(pipeline_orders(kind, ranks, microbatches, CHUNKS[kind])):
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

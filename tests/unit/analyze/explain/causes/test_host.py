"""Where a stall of the host is: on one rank, or nowhere in particular."""

import pytest
from tests.synthetic import MS, capture_of, programs
from tests.unit.analyze.explain.causes.test_find_players import Job, causes_of, stalled

from meshscope.analyze import diagnose
from meshscope.probe.schema.layout import ParallelLayout


@pytest.mark.parametrize(
    ("stalls", "place"),
    [
        ({0: 21, 1: 20}, {}),
        ({0: 40, 1: 20}, {}),
        ({0: 20}, {"rank": 0}),
        ({0: 80, 1: 20}, {"rank": 0}),
    ],
)
def test_one_of_two_ranks_is_the_place_only_if_it_stalls_much_longer(stalls, place):
    """Fails if a stall of both ranks is looked for on the one that has half a percent more of it."""
    job = Job(layout=ParallelLayout(dp=2), steps=5)
    longer = {rank: ms * MS for rank, ms in stalls.items()}
    found, _ = causes_of(stalled(job, "data_load", longer))
    assert found["data_stall"].where == place


@pytest.mark.parametrize(
    ("hits", "place"),
    [
        ([(2, 1), (2, 3), (5, 3)], {}),
        ([(2, 0), (2, 1), (2, 3), (5, 4), (7, 4)], {}),
        ([(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (5, 4)], {"rank": 2}),
        ([(2, 3)], {"rank": 2}),
    ],
)
def test_a_rank_that_pauses_twice_by_chance_is_no_place(hits, place):
    """Fails if a collector that runs here and there is looked for on the rank it met most often."""
    work = {"forward": 10 * MS, "backward": 20 * MS}
    job = Job(layout=ParallelLayout(tp=2, pp=2, dp=2), steps=5)
    operations = programs(job, lambda kind, *_: work[kind])
    for rank, step in hits:
        at = next(i for i, op in enumerate(operations[rank]) if op[0] == "work" and op[2] == step)
        operations[rank].insert(at, ("work", 20 * MS, step, "gc", -1, -1))
    causes = {cause.kind: cause for cause in diagnose(capture_of(job, operations)).causes}
    assert causes["gc_pause"].where == place

"""Where a stall of the host is: on one rank, or nowhere in particular."""

import pytest
from tests.synthetic import MS

from meshscope.probe.schema.layout import ParallelLayout

from .test_find_players import Job, causes_of, stalled


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

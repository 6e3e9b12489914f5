"""Where ranks stand among those they are compared with."""

import numpy as np

from meshscope.analyze.explain.slow_ranks.cube import cube_of
from meshscope.probe.schema.layout import ParallelLayout


def test_places_of_a_replica_are_its_stages_and_tensor_ranks():
    """Ranks with different microbatches would be taken for the same work."""
    layout = ParallelLayout(tp=2, pp=2, dp=3)
    cube = cube_of(tuple(range(12)), layout)
    assert cube.shape == (1, 3, 4)
    assert cube.block == 2
    for position, rank in enumerate(cube.ranks):
        at = layout.coordinates(rank)
        assert cube.replica[position] == at["dp"]
        assert cube.place[position] == at["pp"] * 2 + at["tp"]


def test_tensor_ranks_tell_each_others_work_where_there_is_one_stage():
    """A job without pipeline would have nothing to divide unequal work out with."""
    assert cube_of(tuple(range(8)), ParallelLayout(tp=4, dp=2)).block == 1


def test_values_come_back_in_the_order_of_the_ranks():
    """Scores would be given to the wrong ranks."""
    cube = cube_of((0, 1, 2, 5), ParallelLayout(pp=3, dp=2))
    filled = cube.fill([1.0, 2.0, 3.0, 4.0])
    assert cube.floats(filled).tolist() == [1, 2, 3, 4]
    assert np.isnan(filled).sum() == 2
    assert cube.present.sum() == 4


def test_without_a_layout_all_ranks_are_replicas():
    """A capture without a mesh could not be judged at all."""
    assert cube_of((3, 4, 9), None).shape == (1, 3, 1)


def test_a_capture_of_one_rank_of_each_tensor_group_has_no_empty_cells():
    """Memory and time of the tests would grow with ranks that nobody recorded."""
    layout = ParallelLayout(tp=4, pp=2, dp=3, cp=2)
    recorded = [layout.rank(pp=pp, dp=dp, cp=1, tp=2) for pp in range(2) for dp in (0, 2)]
    cube = cube_of(tuple(sorted(recorded)), layout)
    assert (cube.shape, cube.block) == ((1, 2, 2), 1)
    assert cube.cells == len(recorded) == cube.present.sum()
    for position, rank in enumerate(cube.ranks):
        at = layout.coordinates(rank)
        assert (cube.replica[position], cube.place[position]) == (at["dp"] // 2, at["pp"])


def test_tensor_ranks_that_were_recorded_stay_apart_from_other_stages():
    """A slow rank's sibling, which waits for it, would pass for the work of its stage."""
    layout = ParallelLayout(tp=4, pp=3, dp=2)
    recorded = [rank for rank in range(24) if layout.coordinates(rank)["tp"] in (1, 3)]
    cube = cube_of(tuple(recorded), layout)
    assert (cube.shape, cube.block) == ((1, 2, 6), 2)

"""The layout that a device mesh states, by its names and by the ranks that it holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.probe.hooks.meshes import layout_of_mesh
from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout

sizes = st.fixed_dictionaries({axis: st.integers(1, 3) for axis in MESH_AXES})


@given(sizes, st.permutations(MESH_AXES), st.permutations(MESH_AXES))
def test_a_mesh_gives_every_rank_its_place_back(size, over_ranks, in_mesh):
    """Fails if the order of the mesh's dimensions, or of the ranks in it, changes a place."""
    layout = ParallelLayout(**size, order="-".join(over_ranks))
    shape = [size[axis] for axis in in_mesh]
    ranks = np.empty(shape, dtype=int)
    for place in np.ndindex(*shape):
        ranks[place] = layout.rank(**dict(zip(in_mesh, place, strict=True)))
    found = layout_of_mesh(tuple(in_mesh), tuple(shape), ranks.ravel().tolist())
    assert found is not None
    assert [found.coordinates(rank) for rank in range(layout.world_size)] == [
        layout.coordinates(rank) for rank in range(layout.world_size)
    ]


def test_replicated_and_sharded_data_parallelism_is_one_axis():
    """Fails if hybrid sharding counts as two axes, or as none."""
    found = layout_of_mesh(("pp", "dp_replicate", "dp_shard", "tp"), (2, 2, 3, 2), [*range(24)])
    assert found == ParallelLayout(pp=2, dp=6, tp=2, order="pp-dp-tp-cp")


@pytest.mark.parametrize(
    ("names", "shape", "ranks"),
    [
        (("dp", "spam"), (2, 2), [0, 1, 2, 3]),
        (("dp_replicate", "tp", "dp_shard"), (2, 2, 2), [*range(8)]),
        (("dp", "ep"), (2, 2), [0, 1, 2, 3]),
        (("dp", "tp"), (2, 2), [0, 3, 1, 2]),
    ],
    ids=["an unknown name", "an axis in two places", "experts", "ranks in no regular order"],
)
def test_a_mesh_that_is_no_layout_states_none(names, shape, ranks):
    """Fails if a mesh of another kind becomes a wrong layout, which blames wrong ranks."""
    assert layout_of_mesh(names, shape, ranks) is None

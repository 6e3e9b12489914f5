"""The layout that a device mesh states, by its names and by the ranks that it holds."""

from math import prod

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshscope import probe
from meshscope.probe.hooks.meshes import layout_of_mesh
from meshscope.probe.reader.run import read_run
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


def layout_after(tmp_path, world_size, divide):
    """Return the layout in the run of a process that divides its ranks."""
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        probe.attach(tmp_path / "run")
        divide()
        dist.barrier()
    finally:
        probe.detach()
        dist.destroy_process_group()
    return read_run(tmp_path / "run").tables["run"].to_pylist()[0]


def divided(world, **sizes):
    """Divide the mesh of all ranks into dimensions, with groups only where there are peers."""
    alone = {name: "fake" for name, size in sizes.items() if size == 1}
    return world._unflatten(0, tuple(sizes.values()), tuple(sizes), backend_override=alone)


@pytest.mark.parametrize(
    ("pp", "replicas", "shards", "cp", "tp", "ep"),
    [
        (2, 2, 2, 1, 2, 1),
        (1, 1, 2, 2, 1, 1),
        (2, 2, 1, 2, 2, 2),
        (1, 1, 2, 1, 2, 4),
        (2, 1, 4, 1, 1, 4),
        (1, 1, 1, 4, 1, 1),
    ],
)
def test_ranks_divided_for_data_layers_and_experts(tmp_path, pp, replicas, shards, cp, tp, ep):
    """Fails if the shards of parameters, which fold context in, pass for data parallelism.

    The names and the order are those of torchtitan since 0.2.1.
    """
    total = pp * replicas * shards * cp * tp

    def divide():
        world = init_device_mesh("cpu", (total,), mesh_dim_names=("world",))
        for_data = divided(world, pp=pp, batch=replicas * shards, cp=cp, tp=tp)
        for_data["batch", "cp"]._flatten("loss_mesh")
        divided(world, pp=pp, dp_replicate=replicas, fsdp=shards * cp, tp=tp)
        experts = {"efsdp": shards * cp * tp // ep, "ep": ep, "etp": 1}
        divided(world, pp=pp, dp_replicate=replicas, **experts)

    found = layout_after(tmp_path, total, divide)
    assert {axis: found[axis] for axis in MESH_AXES} == {
        "pp": pp,
        "dp": replicas * shards,
        "cp": cp,
        "tp": tp,
    }
    # Experts shared along the tensor axis too are no divisor of data and context.
    assert found["ep"] == (ep if replicas * shards * cp % ep == 0 else 1)


@pytest.mark.parametrize("sizes", [(2, 2, 2, 1, 2), (1, 1, 2, 2, 2)])
def test_ranks_divided_once_with_experts_inside_the_shards(tmp_path, sizes):
    """Fails if the layout of torchtitan up to 0.2.0, with experts, is unknown or wrong."""
    names = ("pp", "dp_replicate", "dp_shard_mod_ep", "dp_shard_in_ep", "tp")

    def divide():
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        mesh["dp_replicate", "dp_shard_mod_ep", "dp_shard_in_ep"]._flatten("dp")
        mesh["dp_shard_mod_ep", "dp_shard_in_ep"]._flatten("dp_shard_cp")
        mesh["dp_shard_in_ep",]._flatten("ep")

    found = layout_after(tmp_path, prod(sizes), divide)
    pp, *data, tp = sizes
    assert {axis: found[axis] for axis in MESH_AXES} == {
        "pp": pp,
        "dp": prod(data),
        "cp": 1,
        "tp": tp,
    }
    assert found["ep"] == data[-1]


def test_the_layout_is_the_mesh_with_most_axes_not_dimensions(tmp_path):
    """Fails if replicas and shards count as two axes and hide that one of them is context."""

    def divide():
        world = init_device_mesh("cpu", (8,), mesh_dim_names=("world",))
        divided(world, dp_replicate=2, dp_shard=2, fsdp=2)
        divided(world, dp=4, cp=2)
        divided(world, dp_replicate=2, dp_shard=2, fsdp=2)

    found = layout_after(tmp_path, 8, divide)
    assert (found["dp"], found["cp"]) == (4, 2)

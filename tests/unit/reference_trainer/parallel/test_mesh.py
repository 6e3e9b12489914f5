"""Where a process stands, and which GPU it takes."""

from __future__ import annotations

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.parallel.mesh import Place, device_index

TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "host1",
    "MASTER_PORT": "29500",
}


def test_torchrun_says_where_a_process_stands():
    """Fails if a rank takes itself for another, or a lone process waits for others."""
    place = Place.from_environment(TORCHRUN)
    assert (place.rank, place.world_size, place.local_rank, place.local_ranks) == (9, 16, 1, 8)
    assert Place.from_environment({}).world_size == 1


@pytest.mark.parametrize(
    ("local_rank", "gpus", "backend", "index"),
    [(5, 8, "nccl", 5), (5, 8, "gloo", 5), (5, 1, "gloo", 0), (5, 2, "gloo", 1)],
)
def test_ranks_take_their_own_gpu_or_share_over_gloo(local_rank, gpus, backend, index):
    """Fails if ranks share a GPU that they need not share, or ask for one that is not there."""
    place = Place(rank=local_rank, world_size=8, local_rank=local_rank, local_ranks=8)
    assert device_index(place, gpus, backend) == index


def test_sharing_is_said_once_per_host(capsys):
    """Fails if timings of ranks that share a GPU look like those of ranks with one each."""
    for local_rank in range(2):
        place = Place(rank=local_rank, world_size=2, local_rank=local_rank, local_ranks=2)
        device_index(place, 1, "gloo")
    assert capsys.readouterr().err == "2 ranks of this host share 1 GPU (cuda:0) over gloo\n"


@pytest.mark.parametrize("local_rank", [0, 7])
def test_nccl_without_a_gpu_per_rank_is_refused_on_every_rank(local_rank):
    """Fails if some ranks start and wait for ever for those that have no GPU."""
    place = Place(rank=local_rank, world_size=8, local_rank=local_rank, local_ranks=8)
    with pytest.raises(ConfigError, match=r"device\.backend: .*8 ranks .*Set it to gloo"):
        device_index(place, 4, "nccl")

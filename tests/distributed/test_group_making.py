"""Where ranks wait for each other while a process group is made."""

import pytest
from tests.distributed import group_making_job
from tests.distributed.forked_ranks import join_ranks, start_ranks
from tests.distributed.group_making_job import ALONE, LATE, LATE_S

from meshscope.probe.reader.run import read_run

pytestmark = pytest.mark.distributed


@pytest.fixture
def meetings(tmp_path):
    """Return a function that trains, and returns the barriers that the ranks met at."""

    def train(*, is_barrier_wanted):
        given = (str(tmp_path / "store"), str(tmp_path / "run"), is_barrier_wanted)
        ranks = start_ranks(group_making_job.main, [(rank, *given) for rank in range(3)])
        assert join_ranks(ranks) == [0, 0, 0]
        capture = read_run(tmp_path / "run")
        rows = capture.tables["collective"].to_pandas()
        reductions = rows[(rows["kind"] == "all_reduce") & (rows["size_bytes"] == 16)]
        assert (
            reductions.groupby("group_id", observed=True)["seq"].agg(list).tolist() == [[0, 0]] * 2
        )
        met = rows[rows["kind"] == "barrier"].copy()
        met["waited_s"] = (met["wait_end_ns"] - met["wait_start_ns"]) / 1e9
        return met

    return train


def test_members_meet_where_their_group_is_made(meetings):
    """Fails when a member that waits in new_group for a late one seems to spend the time itself."""
    met = meetings(is_barrier_wanted=False)
    assert met.groupby("group_id", observed=True)["rank"].agg(sorted).tolist() == [[0, LATE]] * 2
    assert (met["seq"] == 0).all()
    by_rank = met.sort_values("start_ns").groupby("rank")["waited_s"].agg(list)
    assert min(by_rank[0]) > LATE_S / 2
    assert all(late < early for late, early in zip(by_rank[LATE], by_rank[0], strict=True))


def test_all_ranks_meet_behind_it_where_torch_is_reported_so(meetings):
    """Fails when a rank that is no member waits unseen until the group of others is made."""
    met = meetings(is_barrier_wanted=True)
    found = met.groupby("group_id", observed=True)["rank"].agg(sorted).tolist()
    assert sorted(found) == [[0, LATE], [0, LATE], [0, LATE, ALONE], [0, LATE, ALONE]]
    assert (met.loc[met["rank"] == ALONE, "waited_s"] > LATE_S / 2).all()

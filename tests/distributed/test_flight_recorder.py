"""Dumps that PyTorch itself writes are read, in both forms."""

import pytest
from tests.distributed import flight_recorder_job
from tests.distributed.forked_ranks import run_forked

from meshscope.analyze import diagnose, load_trace

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Return the folders of dumps of two gloo jobs, by case."""
    folders = {}
    for case in ("even", "behind"):
        folders[case] = tmp_path_factory.mktemp(case)
        run_forked(
            folders[case],
            flight_recorder_job.main,
            (folders[case], case),
            ranks=2,
            environment={"TORCH_FR_BUFFER_SIZE": "100"},
        )
    return folders


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_rank_that_did_not_come_is_named(dumps, form):
    """Fails when a dump of this PyTorch is read wrongly, so that a hang is missed or misplaced."""
    trace = load_trace(dumps["behind"] / form)
    assert trace.ranks == (0, 1)
    hangs = [finding for finding in diagnose(trace).findings if finding.kind == "hang"]
    assert [finding.where["ranks"] for finding in hangs] == [[0]]
    assert "Rank 1 waited for rank 0 in all_reduce 4" in str(hangs[0].evidence[0])


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_job_in_which_all_came_is_no_hang(dumps, form):
    """Fails when collectives of gloo, whose ends are not recorded, look as if they hung."""
    trace = load_trace(dumps["even"] / form)
    rows = trace.frame("collective")
    assert rows[rows["kind"].astype(str) == "all_reduce"].groupby("rank").size().tolist() == [3, 3]
    assert not diagnose(trace).findings

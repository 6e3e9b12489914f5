"""A live job in which an all-reduce and a barrier bypass the hooks."""

import json

import numpy as np
import pytest
from tests.distributed import unseen_job
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace

pytestmark = [pytest.mark.distributed, pytest.mark.alone]
SLOWER_BY = 0.5


@pytest.fixture(scope="module")
def job(run_ranks, tmp_path_factory):
    """Return the diagnosis of the job, and the share of its step that the slow rank costs."""
    for _ in range(3):
        out = tmp_path_factory.mktemp("unseen")
        run_ranks("unseen_job.py", out, SLOWER_BY, world_size=4)
        result = diagnose(load_trace(out / "run"))
        # Where others take the processors, what the ranks slept is not what the step took.
        if not any(finding.kind == "host_stall" for finding in result.findings):
            break
    factors = np.array([json.loads((out / f"factors{rank}.json").read_text()) for rank in range(4)])
    healthy = factors.copy()
    healthy[unseen_job.SLOW_RANK] /= 1 + SLOWER_BY
    slept_s = unseen_job.FORWARD_S + unseen_job.BACKWARD_S
    # All wait for the slowest twice in each step: past the forward, and in the gradient sum.
    cost_s = slept_s * (factors.max(0) - healthy.max(0))[1:].mean()
    return result, cost_s * 1e9 / result.step_time_ns


def test_the_slow_rank_is_named_alone_and_priced(job):
    """Fails when waiting inside operations that no hook saw counts as work of the ranks that wait."""
    result, cost_frac = job
    slow = {cause.where["rank"]: cause for cause in result.causes if cause.kind == "straggler_rank"}
    named = {rank for rank, cause in slow.items() if cause.removal_gain_frac > 0.02}
    assert named == {unseen_job.SLOW_RANK}
    # Four processes share what processors there are: more than the exact part of it is not known.
    assert slow[unseen_job.SLOW_RANK].removal_gain_frac == pytest.approx(cost_frac, abs=0.04)


def test_the_join_that_ranks_wait_in_is_reported_as_inferred(job):
    """Fails when a user is not told that the account rests on operations that nobody recorded."""
    result, _ = job
    reported = [
        limit for limit in texts(result.limits) if limit.startswith("No operation was recorded")
    ]
    assert any("before backward" in limit for limit in reported)

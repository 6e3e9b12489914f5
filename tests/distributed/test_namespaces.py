"""Training over real network stacks with one slow link: hosts are network namespaces, links are shaped."""

import pytest
from tests.namespaces import train_over, why_not

from meshscope.analyze import diagnose, load_trace

REFUSED = why_not()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.alone,
    # Prices of wires are judged on a machine at rest only.
    pytest.mark.sampled(keep=()),
    pytest.mark.skipif(REFUSED is not None, reason=REFUSED or ""),
]
SLOW_HOST = 1
SLOW_MBIT = 15
"""A gradient of 0.8 MB takes 0.45 s to leave the host, a step without it 0.35 s."""
CLOSE_NS = 500_000
"""Far below what a transfer over the slow link takes, and what is found as a wrong clock."""
JOB = (
    *("--preset", "tiny", "--set", "layout.pp=2", "--set", "layout.dp=2"),
    *("--set", "model.hidden=128", "--set", "model.ffn=512", "--set", "train.global_batch=8"),
    *("--set", "schedule.microbatches=4", "--set", "pace.layer_ms=20", "--set", "train.steps=10"),
)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Return a run of four hosts of which one sends slowly."""
    folder = tmp_path_factory.mktemp("slow")
    return load_trace(train_over(folder, {SLOW_HOST: SLOW_MBIT}, ranks=4, arguments=JOB))


@pytest.fixture(scope="module")
def diagnosis(slow):
    """Return its diagnosis."""
    return diagnose(slow)


def test_clocks_that_are_one_are_not_found_to_be_off(slow, diagnosis):
    """What lies in the buffers of a slow link would be taken for an offset of a clock."""
    assert set(slow.clocks) == set(range(4))
    assert len(set(slow.clocks.values())) == 4
    for row in slow.frame("clock_sync").to_dict("records"):
        # The stated error is short by up to a fifth of a millisecond where only messages bound it.
        assert abs(row["offset_ns"]) <= row["error_ns"] + CLOSE_NS, row
    assert "clock_skew" not in [finding.kind for finding in diagnosis.findings]


def test_a_slow_link_costs_what_the_job_is_slower_by(diagnosis, tmp_path):
    """Only the fastest way of a collective would be priced, and the rest be nobody's."""
    fast = diagnose(load_trace(train_over(tmp_path, {}, ranks=4, arguments=JOB)))
    true_frac = 1 - fast.step_time_ns / diagnosis.step_time_ns
    links = [one for one in diagnosis.findings if one.kind == "slow_link"]
    (link,) = (one for one in links if one.where["axis"] == "dp")
    assert "[0,1]" in link.where["group_id"]
    assert link.cost_frac > 0.8 * true_frac
    # Messages that leave the host by the same wire are slow with it.
    slow = (one for one in diagnosis.causes if one.kind in {"slow_link", "slow_wire"})
    assert sum(one.share_frac for one in slow) == pytest.approx(true_frac, abs=0.05)

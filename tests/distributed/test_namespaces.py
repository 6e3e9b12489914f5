"""Training over real network stacks with one slow link: hosts are network namespaces, links are shaped."""

from statistics import median

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
PRICE = 0.015
"""How far the price may be from what the job is slower by."""
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
        assert abs(row["offset_ns"]) <= row["error_ns"], row
    assert "clock_skew" not in [finding.kind for finding in diagnosis.findings]


def test_a_slow_port_is_one_cause_with_host_and_interface(slow, diagnosis):
    """Fails when gradients and messages over one shaped port are two causes, or nobody names the port."""
    (link,) = (one for one in diagnosis.findings if one.kind == "slow_link")
    assert link.where["host"] == slow.clock_of(SLOW_HOST)
    codes = [getattr(one, "code", "") for one in link.evidence]
    assert {"slow_port.group", "slow_port.link", "link_rate.interfaces"} <= set(codes)
    assert f"eth0 of host {link.where['host']}" in str(link.claim)


def test_a_slow_port_costs_what_the_job_is_slower_by(diagnosis, tmp_path_factory):
    """Fails when only the fastest way of a collective is priced, and the rest is nobody's."""
    # The step of one job without a limit varies by several per cent from start to start.
    folders = [tmp_path_factory.mktemp("fast") for _ in range(3)]
    runs = [train_over(folder, {}, ranks=4, arguments=JOB) for folder in folders]
    fast_ns = median(diagnose(load_trace(run)).step_time_ns for run in runs)
    true_frac = 1 - fast_ns / diagnosis.step_time_ns
    (link,) = (one for one in diagnosis.findings if one.kind == "slow_link")
    assert link.cost_frac == pytest.approx(true_frac, abs=PRICE)


def test_counters_are_those_of_the_namespace_of_each_host(slow):
    """Fails when an agent reads the ports of the machine, which are the same for all hosts."""
    samples = slow.frame("link_sample")
    samples = samples[samples["port"].astype(str) == "eth0"]
    by_host = samples.groupby(samples["host"].astype(str))["tx_bytes"]
    sent = by_host.max() - by_host.min()
    assert set(sent.index) == set(slow.clocks.values())
    # The two hosts of the first stage and those of the second one send gradients of their own.
    link = slow.frame("collective")
    own = link[link["axis"].astype(str) == "dp"].groupby("rank")["size_bytes"].sum()
    for rank, size_bytes in own.items():
        assert sent[slow.clock_of(int(rank))] > 0.8 * size_bytes

"""On which machine and device a finding is."""

from dataclasses import replace

import pytest
from tests.messages import of_code

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.location import located
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind


def first_finding(fault, *, kind, sample_interval_ns=0):
    """Return the first finding of a kind in a simulated job of four machines."""
    job = SyntheticJob(
        layout=ParallelLayout(pp=2, dp=4),
        schedule=ScheduleKind.ONE_F_ONE_B,
        steps=8,
        jitter_cv=0.02,
        ranks_per_host=2,
        sample_interval_ns=sample_interval_ns,
        faults=(parse_fault(fault),),
    )
    trace, _ = generate(job)
    found = [one for one in diagnose(trace).findings if one.kind == kind]
    return found[0], trace


@pytest.fixture
def diagnosed():
    """Return a finding about rank 5 whose place was not looked up yet, and its job."""
    found, trace = first_finding("slow_rank:rank=5,factor=1.5", kind="straggler_rank")
    where = {key: value for key, value in found.where.items() if key != "host"}
    return replace(found, where=where), trace


def test_a_slow_rank_is_named_with_its_host():
    """Fails when the advice is to check a host that no line names."""
    found, _ = first_finding("slow_rank:rank=5,factor=1.5", kind="straggler_rank")
    assert found.where["host"] == "host0002"
    assert "Runs on: rank 5 on host0002" in map(str, found.evidence)


def test_a_slow_rank_is_named_with_its_device():
    """Fails when the device must be found by hand among those of the host."""
    fault = "slow_rank:rank=5,factor=1.5"
    found, trace = first_finding(fault, kind="straggler_rank", sample_interval_ns=20_000_000)
    devices = trace.frame("rank_device").set_index("rank")["uuid"]
    assert any(f"(device {devices[5]})" in str(line) for line in found.evidence)


def test_a_rank_is_named_with_its_place_on_the_host(diagnosed):
    """Fails when of eight devices of a host nobody can tell which one is slow."""
    found, trace = diagnosed
    reported = located(found, replace(trace, local_ranks={5: 1}))
    assert "Runs on: rank 5 on host0002 (local rank 1)" in map(str, reported.evidence)


def test_a_slow_link_is_named_with_the_hosts_at_its_ends():
    """Fails when nobody can tell between which machines the cable is."""
    found, _ = first_finding("slow_link:axis=pp,rank=0,peer=4,factor=40", kind="slow_link")
    assert "host" not in found.where
    lines = [str(line) for line in found.evidence if "Runs on" in str(line)]
    assert lines == ["Runs on: rank 0 on host0000 and rank 4 on host0002"]


@pytest.mark.parametrize("fault", ["slow_rank:pp=1,dp=0,factor=1.5", "slow_rank:host=2,factor=1.5"])
def test_a_host_is_said_once(fault):
    """Fails when a finding about a host repeats it for each of its ranks."""
    found, _ = first_finding(fault, kind="straggler_rank")
    said = of_code(found.evidence, "location.places")
    assert len(said) == ("ranks" not in found.where)


def test_missing_ranks_are_reported_as_ranges():
    """Fails when of many missing ranks only the first is named."""
    found, _ = first_finding("missing_rank:rank=3", kind="missing_data")
    assert list(map(str, found.evidence)) == ["Missing: rank 3"]

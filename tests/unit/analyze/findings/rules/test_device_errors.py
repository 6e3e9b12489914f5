"""Findings on faults of devices, from tables."""

import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.account.devices.faults import XIDS, FaultClass, faulty_devices
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.host_tables import HOST_TABLES
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(pp=2, dp=4)


@pytest.fixture(scope="module")
def job():
    """Return a healthy capture of eight ranks on two hosts."""
    return capture(Job(layout=LAYOUT, steps=6), uniform(10 * MS, 20 * MS))


def host(rank):
    """Return the host of a rank."""
    return f"node{rank // 4}"


def with_rows(trace, joined=True, **rows):
    """Return the capture with rows of host tables: (rank, columns) of each."""
    tables = {
        name: [{"host": host(rank), "uuid": f"GPU-{rank}", **columns} for rank, columns in own]
        for name, own in rows.items()
    }
    tables["rank_device"] = [
        {"rank": rank, "host": host(rank), "uuid": f"GPU-{rank}", "evidence": "stated"}
        for rank in trace.ranks
        if joined
    ]
    return trace.with_tables(
        {
            name: HOST_TABLES[name].conform(
                pa.Table.from_pylist(own) if own else HOST_TABLES[name].empty()
            )
            for name, own in tables.items()
        }
    )


def xid(rank, number, time_ns):
    """Return an Xid of the device of a rank."""
    return rank, {"time_ns": time_ns, "kind": "xid", "code": number}


def begin_of(trace):
    """Return when the first step began."""
    return int(trace.frame("step")["start_ns"].min())


def errors(trace):
    """Return the findings on errors of devices."""
    return [f for f in diagnose(trace).findings if f.kind == "device_error"]


def test_healthy_devices_give_no_finding(job):
    """Fails when every run with samples has a broken device."""
    rows = [(rank, {"time_ns": begin_of(job), "ecc_uncorrected": 7}) for rank in job.ranks]
    assert errors(with_rows(job, device_sample=rows, device_event=[])) == []


def test_the_worst_fault_leads(job):
    """Fails when a crash of the program is named and the dead device behind it is not."""
    begin = begin_of(job)
    rows = [xid(5, 45, begin), xid(5, 79, begin + 40 * MS), xid(5, 45, begin + 50 * MS)]
    (finding,) = errors(with_rows(job, device_event=rows))
    assert finding.where == {"rank": 5, "host": "node1", "stage": 1}
    assert finding.severity == "critical"
    first, more = finding.claim.values["faults"]
    assert (first.code, first.values["xid"]) == ("device_fault.xid", 79)
    assert str(more) == "1 more kind of fault"
    (fact,) = finding.evidence
    assert "Xid 45" in str(fact)
    assert "2 times" in str(fact)
    assert fact.values["when"].values["step"] == 0
    assert fact.values["when"].values["when"].values["after_ns"] < 50 * MS


def test_an_error_of_the_program_is_no_broken_device(job):
    """Fails when an illegal address sends somebody to replace hardware."""
    (finding,) = errors(with_rows(job, device_event=[xid(2, 31, begin_of(job))]))
    assert finding.severity == "warning"
    assert "compute-sanitizer" in str(finding.remedy)


def test_devices_of_a_host_with_the_same_fault_are_one_finding(job):
    """Fails when one broken switch is eight findings."""
    rows = [xid(rank, 74, begin_of(job)) for rank in (4, 5, 6, 7)]
    (finding,) = errors(
        with_rows(
            job,
            device_event=[
                *rows,
            ],
        )
    )
    assert finding.where == {"ranks": [4, 5, 6, 7], "stage": 1, "host": "node1"}
    assert "4 devices of ranks 4, 5, 6 and 7 on node1" in str(finding.claim)
    assert len(finding.evidence) == 4
    assert "nvlink" in str(finding.remedy)


def test_a_pending_remap_is_a_warning(job):
    """Fails when a row that waits for a reset stops the job, or is not reported."""
    rows = [(1, {"time_ns": begin_of(job) + at, "remap_pending": True}) for at in range(3)]
    (finding,) = errors(with_rows(job, device_sample=rows))
    assert finding.severity == "warning"
    assert "waits for a reset" in str(finding.claim)


def test_a_counter_that_was_reset_did_not_grow(job):
    """Fails when a driver that was loaded again hides new errors, or counts old ones twice."""
    values = (5, 0, 0, 2)
    rows = [
        (3, {"time_ns": begin_of(job) + at, "ecc_uncorrected": value})
        for at, value in enumerate(values)
    ]
    (finding,) = errors(with_rows(job, device_sample=rows))
    assert "2 more uncorrected memory errors" in str(finding.claim)


def test_without_ranks_of_devices_all_are_reported(job):
    """Fails when faults are kept back because no rank says on which device it runs."""
    (finding,) = errors(with_rows(job, joined=False, device_event=[xid(6, 119, 0)]))
    assert finding.where == {"host": "node1"}
    assert finding.claim.values["uuid"] == "GPU-6"
    assert finding.evidence[0].values["who"].code == "device_error.no_rank"


def test_an_unknown_number_is_reported_as_it_is(job):
    """Fails when a fault of a newer driver is passed over or ends the diagnosis."""
    (finding,) = errors(with_rows(job, device_event=[xid(0, 9999, begin_of(job))]))
    assert "Xid 9999" in str(finding.claim)
    assert finding.severity == "critical"


def test_a_device_in_two_tables_is_one_device(job):
    """Fails when the event and the counter of one fault are two devices."""
    begin = begin_of(job)
    counts = [(4, {"time_ns": begin + at, "ecc_uncorrected": at}) for at in range(2)]
    trace = with_rows(job, device_event=[xid(4, 48, begin)], device_sample=counts)
    (device,) = faulty_devices(trace)
    assert (device.rank, device.host, len(device.faults)) == (4, "node1", 2)


def test_every_number_has_a_place_to_look():
    """Fails when a number is listed without saying where its cause is."""
    assert all(one.fault is not FaultClass.UNKNOWN and one.meaning for one in XIDS.values())

"""Faults of devices, from the driver to the finding: agent, segments, tables, diagnosis."""

import os
import signal
import threading

import pytest

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.probe.agent.agent import Agent
from meshscope.probe.agent.settings import AgentSettings
from meshscope.probe.clock import now_ns
from meshscope.probe.recording.recorder import SPAN_CODES, Recorder, StorageSettings
from meshscope.probe.schema.terms import SpanKind

UUID = "GPU-00000000-0000-0000-0000-00000000000{}".format
LOST, NEEDS_RESET = 15, 16
PATIENCE_S = 60.0


@pytest.fixture
def train(run_path, sysfs, tmp_path, monkeypatch):
    """Return a function that lets an agent watch two ranks until something is in its samples.

    Meanwhile the ranks record steps; it returns the findings on errors of devices.
    """
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))

    def start(break_devices, seen):
        settings = StorageSettings(wake_s=3600.0, slot_count=65536, free_floor_frac=0.0)
        ranks = [
            Recorder(run_path, rank, device_uuid=UUID(rank), settings=settings) for rank in (0, 1)
        ]
        agent = Agent(run_path, AgentSettings(interval_s=0.1, flush_s=0.2, sysfs=sysfs))
        beside = threading.Thread(target=steps, args=(ranks, agent, run_path, break_devices, seen))
        beside.start()
        agent.run()
        beside.join()
        agent.close()
        for recorder in ranks:
            recorder.close()
        return [f for f in diagnose(load_trace(run_path)).findings if f.kind == "device_error"]

    return start


def steps(ranks, agent, run_path, break_devices, seen):
    """Record steps; after the first samples break devices, end when the capture shows that."""
    end_ns = now_ns() + int(PATIENCE_S * 1e9)
    was_broken, is_seen, step, begin_ns = False, False, 0, now_ns()
    while now_ns() < end_ns and not is_seen:
        # Looked at before the step ends, so that what is seen lies in a step.
        is_seen = was_broken and seen(tables(run_path))
        threading.Event().wait(0.02)
        spent_ns = now_ns() - begin_ns
        for recorder in ranks:
            recorder.step = step
            recorder.record_span(SPAN_CODES[SpanKind.FORWARD], begin_ns, spent_ns, spent_ns)
            recorder.record_step(step, begin_ns, spent_ns)
        begin_ns, step = begin_ns + spent_ns, step + 1
        if not was_broken and "device_sample" in agent.status()["sources"]:
            was_broken = True
            break_devices()
    os.kill(os.getpid(), signal.SIGTERM)


def tables(run_path):
    """Return the frames of a live run."""
    trace = load_trace(run_path)
    return {name: trace.frame(name) for name in ("device_event", "device_sample")}


def test_an_xid_is_a_finding_with_rank_device_step_and_remedy(train, scenario):
    """Fails when the driver says that a device died and the diagnosis does not."""
    (finding,) = train(
        lambda: scenario.add("event 1 79"), lambda found: len(found["device_event"]) > 0
    )
    assert finding.severity == "critical"
    assert finding.where == {"rank": 1, "host": os.uname().nodename}
    assert "rank 1 reported Xid 79 (a device that fell off the bus)" in str(finding.claim)
    assert str(finding.evidence[0]).startswith(f"{UUID(1)} (rank 1): Xid 79")
    assert "in step " in str(finding.evidence[0])
    assert "dmesg" in str(finding.remedy)
    assert finding.cost_frac is None


def test_counters_that_grow_are_a_finding(train, scenario):
    """Fails when memory errors are sampled and nobody is told, or old ones count as new."""
    scenario.add("set * ecc_uncorrected 3", "set * remapped_uncorrected 2")
    (finding,) = train(
        lambda: scenario.add("set 0 ecc_uncorrected 5", "set 0 remap_failed 1"),
        lambda found: found["device_sample"]["remap_failed"].isin([True]).any(),
    )
    assert finding.where["rank"] == 0
    assert "2 more uncorrected memory errors" in str(finding.evidence[0])
    assert "could not be replaced" in str(finding.evidence[0])
    assert "spare ones" not in str(finding.evidence[0])


@pytest.mark.parametrize(
    ("code", "claim"), [(LOST, "that it is lost"), (NEEDS_RESET, "that it needs a reset")]
)
def test_a_device_that_refuses_everything_is_a_finding(train, scenario, code, claim):
    """Fails when a device that is gone only leaves gaps in the samples."""
    (finding,) = train(
        lambda: scenario.add(f"error 1 nvmlDeviceGetMemoryInfo {code}"),
        lambda found: len(found["device_event"]) > 0,
    )
    assert finding.where["rank"] == 1
    assert claim in str(finding.claim)


def test_faults_of_other_devices_are_not_ours(train, scenario):
    """Fails when a run is told of the device of another job on its host."""
    found = train(
        lambda: scenario.add("event 5 48", "set 6 ecc_uncorrected 9"),
        lambda found: len(found["device_event"]) > 0,
    )
    assert found == []

"""Readers that hang, die or talk nonsense."""

import os
import signal

import pytest

from meshscope.probe.agent import sources
from meshscope.probe.agent.readings import Reading, ReplayEnded
from meshscope.probe.agent.sources import DirectSource
from meshscope.probe.clock import now_ns

UUID = "GPU-00000000-0000-0000-0000-000000000003"
SOON_NS = 1_000_000_000


def later(asked):
    """Let the pause after a failure pass."""
    asked.source._not_before_ns = 0
    return asked


def test_a_call_that_hangs_is_left_out_and_the_rest_goes_on(scenario, ask):
    """Fails when one hung driver call ends the sampling of all devices, or is made again."""
    reader = ask("devices", timeout_ns=SOON_NS)
    assert reader.read() is not None
    scenario.add("hang 3 nvmlDeviceGetPowerUsage")
    assert reader.read() is None
    assert reader.counted[f"devices reader hung in {UUID} nvmlDeviceGetPowerUsage"] == 1
    assert reader.read() is None, "it is started again at once, without a pause"
    reading = later(reader).read()
    rows = {row["uuid"]: row for row in reading.rows["device_sample"]}
    assert len(rows) == 8
    assert [uuid for uuid, row in rows.items() if "power_w" not in row] == [UUID]
    assert reading.missing["power_w: the driver did not answer"] == 1


def test_a_call_that_answers_again_is_made_again(scenario, ask, monkeypatch):
    """Fails when a call that hung once is never tried again."""
    monkeypatch.setattr(sources, "_LEAVE_OUT_NS", 1_000_000)
    reader = ask("devices", timeout_ns=SOON_NS)
    assert reader.read() is not None
    scenario.add("hang 3 nvmlDeviceGetPowerUsage")
    assert reader.read() is None
    scenario.remove("hang 3 nvmlDeviceGetPowerUsage")
    reading = later(reader).read()
    assert "power_w: the driver did not answer" not in reading.missing


def test_a_driver_that_hangs_at_start_is_asked_no_more(scenario, ask):
    """Fails when a driver that never comes up is started again and again."""
    scenario.add("hang * nvmlInitWithFlags")
    reader = ask("devices", timeout_ns=SOON_NS)
    assert reader.read() is None
    reading = later(reader).read()
    assert reading.facts == {"unavailable": "the driver did not answer"}
    assert reader.read() is None
    assert reader.counted["devices_reader_starts"] == 2


def test_a_reader_that_dies_is_replaced(sysfs, ask):
    """Fails when a reader that the driver brought down is missed for good."""
    reader = ask("links", root=sysfs)
    assert len(reader.read().rows["link_sample"]) == 2
    os.kill(reader.source._child.pid, signal.SIGKILL)
    reader.source._child.wait()
    assert reader.read() is None
    assert reader.counted["links reader died"] == 1
    assert len(later(reader).read().rows["link_sample"]) == 2


def test_the_pause_grows_and_ends_with_success(sysfs, ask):
    """Fails when a reader that dies at once is started in a tight loop."""
    reader = ask("links", root=sysfs)
    pauses = []
    for _ in range(2):
        later(reader).source.ask(now_ns())
        os.kill(reader.source._child.pid, signal.SIGKILL)
        assert reader.read() is None
        pauses.append(reader.source._not_before_ns - now_ns())
    assert pauses[1] > 1.5 * pauses[0]
    later(reader).read()
    assert reader.source._pause_ns == sources._FIRST_PAUSE_NS


def test_children_that_cannot_be_killed_are_not_multiplied(sysfs, ask, monkeypatch):
    """Fails when a driver that holds processes in the kernel fills the process table."""

    class Stuck:
        def poll(self):
            return None

    reader = ask("links", root=sysfs)
    reader.source._stuck = [Stuck() for _ in range(sources._MOST_STUCK)]
    assert reader.read() is None
    assert reader.counted == {}
    reader.source._stuck = []
    assert later(reader).read() is not None


def test_a_line_that_is_no_reading_is_refused(sysfs, ask, monkeypatch):
    """Fails when garbage from a child ends the agent."""
    monkeypatch.setattr(
        sources, "_COMMAND", ("/bin/sh", "-c", "read x; echo '{\"source\": 1}'; sleep 9")
    )
    reader = ask("links", root=sysfs)
    reader.source.ask(now_ns())
    os.write(reader.source._child.stdin.fileno(), b"\n")
    assert reader.read() is None
    assert reader.counted["links reader gave what has no source"] == 1


def test_a_reader_in_this_process_is_read_when_asked():
    """Fails when a direct reader is read twice for one question, or its end is lost."""

    class Once:
        name = "host"
        left = 1

        def read(self):
            if not self.left:
                raise ReplayEnded
            self.left -= 1
            return Reading(source="host", time_ns=1)

        def close(self):
            self.left = -1

    source = DirectSource(Once())
    source.ask(0)
    assert [reading.time_ns for reading in source.take(0)] == [1]
    assert source.take(0) == []
    with pytest.raises(ReplayEnded):
        source.ask(0)

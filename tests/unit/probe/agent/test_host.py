"""Figures of the host from a tree like /proc."""

import pytest
from tests.trees import write

from meshscope.probe.agent.host import HostReader


@pytest.fixture
def proc(tmp_path):
    """Return a tree with the files that are read."""
    root = tmp_path / "proc"
    write(root / "stat", "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5")
    write(root / "loadavg", "1.50 1.00 0.50 2/300 4000")
    write(
        root / "meminfo",
        "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 100 kB\nSwapFree: 75 kB",
    )
    write(root / "vmstat", "pgpgin 5\npswpin 2\npswpout 3")
    write(root / "pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0")
    return root


def test_shares_are_of_the_time_between_readings(proc):
    """Fails when the first reading makes a share up, or a later one counts since boot."""
    reader = HostReader(proc)
    first = reader.read().rows["host_sample"][0]
    assert "cpu_busy_frac" not in first
    assert first["cpus"] == 2
    assert first["load_1m"] == 1.5
    assert first["mem_available_bytes"] == 400 * 1024
    assert first["swap_used_bytes"] == 25 * 1024
    write(proc / "stat", "cpu  160 0 100 720 120 0 0 0 99 0\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5")
    second = reader.read().rows["host_sample"][0]
    assert second["cpu_busy_frac"] == pytest.approx(0.6)
    assert second["cpu_iowait_frac"] == pytest.approx(0.2)
    reader.close()


def test_what_a_kernel_does_not_tell_is_missing_with_the_reason(proc):
    """Fails when a kernel without pressure figures seems to have none."""
    reader = HostReader(proc)
    reading = reader.read()
    assert reading.missing == {
        f"{column}: No such file or directory": 1
        for column in ("mem_stall_frac", "mem_full_stall_frac", "io_stall_frac")
    }
    reader.close()


def test_odd_files_cost_only_their_own_figures(proc):
    """Fails when one file of another form takes the rest of the sample with it."""
    write(proc / "stat", "nonsense")
    write(proc / "pressure/cpu", "none")
    reader = HostReader(proc)
    reading = reader.read()
    row = reading.rows["host_sample"][0]
    assert row["mem_total_bytes"] == 1000 * 1024
    assert "cpu_busy_frac" not in row
    assert reading.missing["cpu_busy_frac: has another form than expected"] == 1
    reader.close()


def test_this_machine_can_be_read():
    """Fails when the real files of a Linux machine are not understood."""
    reader = HostReader()
    row = reader.read().rows["host_sample"][0]
    assert row["cpus"] >= 1
    assert 0 < row["mem_available_bytes"] <= row["mem_total_bytes"]
    reader.close()

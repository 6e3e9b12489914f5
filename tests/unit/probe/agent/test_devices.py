"""Devices as the real nvidia-ml-py reads them from a stub of the driver library."""

import threading

import pytest
from tests.nvml_stub import ALL_LINKS, NVLINK_RX, NVLINK_SPEED, NVLINK_TX, PCIE_TX

UUID = "GPU-00000000-0000-0000-0000-00000000000{}".format
LOST, NOT_SUPPORTED = 15, 3


def rows_of(reading):
    """Return the device samples of a reading in the order of the devices."""
    return sorted(reading.rows["device_sample"], key=lambda row: row["uuid"])


def test_what_a_device_refuses_to_say_of_itself_has_a_reason(scenario, ask):
    """Fails when a clock that is not known leaves nobody a word why."""
    scenario.add(f"error 2 nvmlDeviceGetMaxClockInfo {NOT_SUPPORTED}")
    reading = ask("devices").read()
    devices = reading.facts["devices"]
    assert [d["index"] for d in devices if "max_clock_hz" not in d] == [2]
    assert reading.missing["max_clock_hz: not supported"] == 1


def test_what_links_carry_is_stated(scenario, ask):
    """Fails when the use of NVLink or PCIe has no peak, or that of a link that is down counts."""
    scenario.add("set 1 pcie_gen 3", "set 1 pcie_width 8", "set 2 pcie_gen 99")
    scenario.add("set 1 nvlinks 12", f"set 1 field_{NVLINK_SPEED}_0 25000", "set 3 nvlinks 2")
    reading = ask("devices").read()
    first, second, third, fourth = reading.facts["devices"][:4]
    assert first["pcie_bytes_per_s"] == pytest.approx(16 * 32e9 * 128 / 130 / 8)
    assert second["pcie_bytes_per_s"] == pytest.approx(8 * 8e9 * 128 / 130 / 8)
    assert second["nvlink_bytes_per_s"] == pytest.approx(300e9)
    assert "pcie_bytes_per_s" not in third
    assert "nvlink_bytes_per_s" not in first
    # Links are up, and the driver does not say how fast.
    assert "nvlink_bytes_per_s" not in fourth
    assert reading.missing["nvlink_bytes_per_s: not supported"] == 1


def test_every_field_in_its_unit(scenario, ask):
    """Fails when a field is read from another place, or in another unit."""
    scenario.add(
        "set * power 300000",
        "set 0 energy 2500",
        "set 0 throttle 64",
        "set 0 ecc_uncorrected 3",
        "set 0 remapped_corrected 1",
        "set 0 remapped_uncorrected 1",
        "set 0 remap_pending 1",
        f"set * field_{NVLINK_TX}_{ALL_LINKS} 10",
        f"set * field_{PCIE_TX}_0 12345",
        "set * gpm_2 80",
        "set * gpm_60 2",
        "set 1 pid 4242",
    )
    reader = ask("devices")
    first = reader.read()
    assert [device["index"] for device in first.facts["devices"]] == list(range(8))
    assert first.facts["devices"][3]["uuid"] == UUID(3)
    assert first.facts["devices"][3]["max_clock_hz"] == 1.98e9
    assert first.rows["device_process"] == [
        {"uuid": UUID(1), "time_ns": pytest.approx(first.time_ns, abs=1e10), "pid": 4242}
        | {"mem_used_bytes": 1 << 30}
    ]
    row = rows_of(reader.read())[0]
    del row["time_ns"]
    assert row == {
        "uuid": UUID(0),
        "mem_used_bytes": 1 << 30,
        "sm_util_frac": 0.5,
        "mem_util_frac": 0.25,
        "power_w": 300.0,
        "energy_j": 2.5,
        "clock_hz": 1.98e9,
        "mem_clock_hz": 1.98e9,
        "temperature_c": 60.0,
        "throttle_mask": 64,
        "ecc_corrected": 0,
        "ecc_uncorrected": 3,
        "remapped_rows": 2,
        "remap_pending": True,
        "remap_failed": False,
        "nvlink_tx_bytes": 10 * 1024,
        "pcie_tx_bytes": 12345,
        "sm_active_frac": 0.8,
        "nvlink_rx_rate_bytes_per_s": 2.0 * (1 << 20),
    }


def test_refusals_cost_one_field_of_one_device(scenario, ask):
    """Fails when a field that one device does not have is missing on another, or reads as zero."""
    scenario.add(
        f"error 2 nvmlDeviceGetPowerUsage {NOT_SUPPORTED}", "error 5 nvmlDeviceGetClockInfo 999"
    )
    reader = ask("devices")
    reading = reader.read()
    rows = rows_of(reading)
    assert ["power_w" in row for row in rows] == [index != 2 for index in range(8)]
    assert ["clock_hz" in row for row in rows] == [index != 5 for index in range(8)]
    assert reading.missing["power_w: not supported"] == 1
    assert reading.missing["clock_hz: error 999"] == 1


def test_a_lost_device_is_silent_and_the_others_go_on(scenario, ask):
    """Fails when a device that fell off the bus takes the samples of the others with it."""
    reader = ask("devices")
    assert len(rows_of(reader.read())[6]) > 10
    scenario.add(*(f"error 6 {call} {LOST}" for call in ("nvmlDeviceGetMemoryInfo",)))
    reading = reader.read()
    assert set(rows_of(reading)[6]) == {"uuid", "time_ns"}
    assert reading.missing["power_w: device lost"] == 1
    assert all(len(row) > 10 for row in rows_of(reading)[:6])


def test_an_old_driver_lacks_symbols(scenario, old_library, ask, monkeypatch):
    """Fails when one function that a driver does not export ends the sampling."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_library))
    scenario.add("set * throttle 8")
    reading = ask("devices").read()
    row = rows_of(reading)[0]
    assert row["throttle_mask"] == 8, "the older name of the function is not used"
    assert reading.missing["remapped_rows: not in this driver"] == 8
    assert reading.missing["sm_active_frac: not in this driver"] == 8


def test_links_are_added_up_where_there_is_no_total(scenario, ask):
    """Fails when a device that counts each link by itself shows no traffic."""
    scenario.add(f"set 0 field_{NVLINK_RX}_0 5", f"set 0 field_{NVLINK_RX}_3 7")
    row = rows_of(ask("devices").read())[0]
    assert row["nvlink_rx_bytes"] == 12 * 1024
    assert "nvlink_tx_bytes" not in row


def test_a_fault_is_an_event(scenario, ask):
    """Fails when an Xid is lost, or blamed on another device."""
    reader = ask("devices")
    reader.read()
    scenario.add("event 2 79")
    events = []
    for _ in range(200):
        events += reader.read().rows.get("device_event", [])
        if events:
            break
        threading.Event().wait(0.02)
    assert [(e["uuid"], e["kind"], e["code"]) for e in events] == [(UUID(2), "xid", 79)]


def test_no_driver_is_a_fact_not_an_error(ask, monkeypatch, tmp_path):
    """Fails when a machine without devices is sampled in vain, or counted as broken."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    reader = ask("devices")
    reading = reader.read()
    if "devices" in reading.facts:
        pytest.skip("this machine has a driver library of its own")
    assert reading.facts == {"unavailable": "no driver library"}
    assert reader.counted == {"devices_reader_starts": 1}


def test_a_device_that_cannot_be_opened(scenario, ask):
    """Fails when a dead device at start hides the living ones."""
    scenario.add(f"error 4 nvmlDeviceGetHandleByIndex_v2 {LOST}")
    reading = ask("devices").read()
    assert len(reading.rows["device_sample"]) == 7
    assert reading.facts["devices_not_found"] == {"device 4": "device lost"}

"""How fast devices ran at work, and what held them back."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.devices.health import device_health

GHZ = 1e9


def capture(clocks, masks=None, *, busy=1.0, names=None, samples=10):
    """Return a capture of one rank a device with constant clocks and the given masks."""
    rows = [
        {
            "uuid": f"GPU-{rank}",
            "time_ns": 100 + at,
            "clock_hz": clock,
            "throttle_mask": (masks or {}).get(rank, [0])[at % len((masks or {}).get(rank, [0]))],
            "sm_util_frac": busy,
            "power_w": 100.0 + at,
        }
        for rank, clock in enumerate(clocks)
        for at in range(samples)
    ]
    ranks = range(len(clocks))
    return trace_of(
        device_sample=rows,
        device=[{"uuid": f"GPU-{rank}", "name": (names or {}).get(rank, "H100")} for rank in ranks],
        rank_device=[{"rank": rank, "uuid": f"GPU-{rank}"} for rank in ranks],
    )


def test_a_clock_is_held_against_the_others():
    """Fails when a device is in its own median."""
    health = device_health(capture([1.8 * GHZ, 1.9 * GHZ, 1.2 * GHZ, 2.0 * GHZ]), 0, 1000)
    assert health["peer_hz"].tolist() == pytest.approx([1.9e9, 1.8e9, 1.9e9, 1.8e9])
    assert health["clock_hz"].tolist() == pytest.approx([1.8e9, 1.9e9, 1.2e9, 2.0e9])
    assert health["power_w"].tolist() == [109.0] * 4


def test_reasons_count_by_how_long_they_held():
    """Fails when one short dip is called throttling, or the power cap a fault."""
    masks = {0: [0x40, 0x40, 0x44, 0, 0], 1: [0x04], 2: [0x01]}
    health = device_health(capture([GHZ] * 3, masks), 0, 1000).set_index("rank")
    assert health["throttled_frac"].tolist() == pytest.approx([0.6, 0, 0])
    assert health["capped_frac"].tolist() == pytest.approx([0.2, 1, 0])
    assert health["mask"].tolist() == [0x44, 0x04, 0]


@pytest.mark.parametrize(
    "trace",
    [
        capture([GHZ] * 3, busy=0.1),
        capture([GHZ] * 3, samples=2),
        trace_of(device_sample=[{"uuid": "GPU-0", "time_ns": 5, "clock_hz": GHZ}]),
        trace_of(),
    ],
    ids=["idle devices", "too few samples", "no rank on it", "no samples"],
)
def test_nothing_is_said_without_evidence(trace):
    """Fails when an idle device, whose clock falls by design, is called slow."""
    assert device_health(trace, 0, 1000).empty


def test_samples_outside_the_analysed_time_do_not_count():
    """Fails when a device that was hot before the run is blamed for it."""
    trace = capture([GHZ] * 3, {0: [0x40]})
    assert device_health(trace, 0, 99).empty
    assert len(device_health(trace, 100, 109)) == 3


def test_only_devices_of_one_kind_are_compared():
    """Fails when another model's clock makes a device slow, or two devices judge each other."""
    clocks = [1.0 * GHZ, 1.0 * GHZ, 1.0 * GHZ, 2.0 * GHZ, 2.0 * GHZ]
    names = {3: "B200", 4: "B200"}
    health = device_health(capture(clocks, names=names), 0, 1000)
    assert health["peer_hz"].tolist()[:3] == [1e9] * 3
    assert health["peer_hz"].isna().tolist()[3:] == [True, True]


def test_a_driver_that_tells_no_reasons():
    """Fails when an unknown reason counts as none."""
    health = device_health(capture([GHZ] * 3, {rank: [None] for rank in range(3)}), 0, 1000)
    assert health["throttled_frac"].isna().all()
    assert health["mask"].tolist() == [0, 0, 0]

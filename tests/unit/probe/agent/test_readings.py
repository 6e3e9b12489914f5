"""Lines that readers send."""

import pytest

from meshscope.probe.agent.readings import MOST_BYTES, Reading, ReadingError, reading_from_json


def test_a_reading_survives_its_line():
    """Fails when a value changes between a reader and the agent."""
    reading = Reading(
        source="devices",
        time_ns=1 << 62,
        rows={"device_sample": [{"uuid": "GPU-ü", "power_w": 0.1, "remap_failed": False}]},
        facts={"devices": [{"index": 0}]},
    )
    reading.lacks("clock_hz", "not supported", 8)
    reading.lacks("clock_hz", "not supported")
    assert reading.missing == {"clock_hz: not supported": 9}
    assert "\n" not in reading.to_json()
    assert reading_from_json(reading.to_json()) == reading


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "[" * 100_000,
        '{"source": "host"}',
        '{"source": "host", "time_ns": true, "rows": {}, "missing": {}}',
        '{"source": "host", "time_ns": 1, "rows": [], "missing": {}}',
        '{"source": "host", "time_ns": 1, "rows": {"span": []}, "missing": {}}',
        '{"source": "host", "time_ns": 1, "rows": {"host_sample": [1]}, "missing": {}}',
        '{"source": "host", "time_ns": 1, "rows": {}, "missing": {"a": "b"}}',
        " " * (MOST_BYTES + 1),
    ],
)
def test_what_is_no_reading_is_refused(line):
    """Fails when a broken child or file puts something else in the place of a sample."""
    with pytest.raises(ReadingError):
        reading_from_json(line)

"""What is said of a run as a whole."""

import pytest
from tests.texts import texts

from meshscope.probe.reader.run import read_run


@pytest.mark.parametrize(
    ("bounds", "is_reported"),
    [
        ({"least_ns": 5, "most_ns": 17_000_005}, True),
        ({"least_ns": 5, "most_ns": 95_005}, False),
        ({"least_ns": 5, "most_ns": None}, False),
        ("torn", False),
    ],
)
def test_a_clock_of_a_device_that_is_known_badly_is_a_limit(
    make_recorder, run_path, bounds, is_reported
):
    """Fails when waits of a device lie beside those of its peers by milliseconds, and nothing says so."""
    recorder = make_recorder()
    recorder.annotate("device_clock", bounds)
    recorder.close()
    reported = [
        limit for limit in texts(read_run(run_path).limits) if limit.startswith("Device times may")
    ]
    assert len(reported) == is_reported
    if is_reported:
        assert "up to 17.0 ms too early" in reported[0]

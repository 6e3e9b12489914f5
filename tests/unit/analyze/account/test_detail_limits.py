"""Lists of single operations of captures that hold some steps as sums."""

import pytest
from tests.played import play
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.load.load import load_trace
from meshscope.analyze.output.json.collectives import collectives_to_json
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import CaptureLevel

STEPS = 7


@pytest.fixture(scope="module")
def trace():
    """Return a job of four replicas."""
    return capture(Job(layout=ParallelLayout(dp=4), steps=STEPS), uniform(4 * MS, 8 * MS))


def listed(trace, folder, full, **options):
    """Return the steps whose collectives are listed, and the limits of the list."""
    found = collectives_to_json(load_trace(play(trace, folder, full, **options)))
    return {row["step"] for row in found["collectives"]}, found["limits"]


def test_steps_of_sums_are_said_not_to_be_listed(trace, tmp_path):
    """Fails when totals over a list of operations seem to be those of the whole run."""
    steps, limits = listed(trace, tmp_path, FullRecords(every_steps=3), empty_ring=True)
    assert steps == {0, 3, 6}
    (said,) = [limit for limit in limits if "sums" in limit]
    assert said.startswith(
        "In 4 of 7 steps only sums of communication are known. Not in this list: 16 "
    )


def test_steps_at_a_lower_level_are_said_too(trace, tmp_path):
    """Fails when steps without any communication record look like steps without communication."""
    steps, limits = listed(trace, tmp_path, FullRecords(), level=CaptureLevel.STAGES)
    assert steps == set()
    assert any("7 of 7 steps have no communication" in limit for limit in limits)


def test_a_capture_in_full_lacks_nothing(trace, tmp_path):
    """Fails when a whole list is said to be a part."""
    steps, limits = listed(trace, tmp_path, FullRecords())
    assert steps == set(range(STEPS))
    assert not [limit for limit in limits if "sums" in limit or "no communication" in limit]

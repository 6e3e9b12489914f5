"""Recordings of readings, whole and broken."""

import gzip

import pytest

from meshscope.probe.agent.readings import Reading, ReplayEnded
from meshscope.probe.agent.recording import RecordingWriter, ReplayReader, recorded_sources
from meshscope.probe.schema.errors import ConfigError, SegmentError

READINGS = [
    Reading(source="host", time_ns=1, rows={"host_sample": [{"time_ns": 1, "load_1m": 0.5}]}),
    Reading(source="links", time_ns=2, rows={"link_sample": []}, missing={"wait: gone": 2}),
    Reading(source="host", time_ns=3, facts={"kernel": "x"}),
]


@pytest.fixture
def recording(tmp_path):
    """Return a recording of three readings."""
    path = tmp_path / "readings.gz"
    writer = RecordingWriter(path)
    for reading in READINGS:
        writer.add(reading)
    writer.close()
    return path


def test_a_replay_gives_what_was_recorded(recording):
    """Fails when a recording of a machine is not as good as the machine."""
    assert recorded_sources(recording) == ["host", "links"]
    reader = ReplayReader(recording, "host")
    assert [reader.read(), reader.read()] == [READINGS[0], READINGS[2]]
    with pytest.raises(ReplayEnded):
        reader.read()
    reader.close()
    assert recording.stat().st_mode & 0o777 == 0o600


def test_an_existing_file_is_not_overwritten(recording):
    """Fails when a second recording destroys the first."""
    with pytest.raises(ConfigError, match="exists already"):
        RecordingWriter(recording)


def test_a_recording_that_was_cut_off_is_read_up_to_there(recording):
    """Fails when a killed agent's recording is of no use."""
    recording.write_bytes(recording.read_bytes()[:-12])
    assert recorded_sources(recording) == ["host", "links"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"[]\n"),
        gzip.compress(b'{"format": "meshscope readings 1"}\n{"source": 4}\n'),
    ],
    ids=["empty", "not compressed", "another file", "a line that is not a reading"],
)
def test_what_is_no_recording_is_refused(tmp_path, content):
    """Fails when a wrong file is replayed as an idle machine, or with a traceback."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(SegmentError, match=r"is not a recording|is damaged"):
        recorded_sources(path)

"""The newest collectives of a rank, noted where they are not recorded."""

import pytest
import torch
import torch.distributed as dist

from meshscope import probe
from meshscope.probe.hooks.base import Capture
from meshscope.probe.schema.manifest import LAST_OPERATIONS_KEY, MANIFEST_NAME, read_json
from meshscope.probe.schema.records import LEVEL_CODES
from meshscope.probe.schema.terms import CaptureLevel
from meshscope.probe.session import last_operations
from meshscope.probe.session.last_operations import MOST_OF_GROUP, LastOperations, newest_of_groups


def entry(number, group="0", *, is_p2p=False, tensors=1):
    """Return an entry of torch's recorder."""
    return {
        "record_id": number,
        "collective_seq_id": number,
        "process_group": (group, "default_pg"),
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[4]] * tensors,
        "is_p2p": is_p2p,
        "frames": ["much"],
    }


def ids_of(names):
    """Return the ids of all groups but the one that is gone."""
    return {name: f"{name}[0,1]" for name in names if name != "gone"}


def numbers(entries):
    """Return group and number of what is noted."""
    return [
        (one["process_group"][0], one["collective_seq_id"])
        for one in newest_of_groups(entries, ids_of)
    ]


def test_the_newest_of_each_group_are_kept_in_order():
    """One busy group would hide the only operation of another, in which the job stands."""
    busy = [entry(at) for at in range(100)]
    found = numbers([entry(7, "1"), *busy])
    assert found == [("1[0,1]", 7), *(("0[0,1]", at) for at in range(100 - MOST_OF_GROUP, 100))]


def test_what_cannot_be_compared_is_left_out():
    """Messages have numbers of their own, a dead group no id, and a call of a thousand tensors fills the manifest."""
    entries = [entry(1, is_p2p=True), entry(2, "gone"), entry(3, tensors=1000), entry(4)]
    assert numbers(entries) == [("0[0,1]", 4)]
    (kept,) = newest_of_groups(entries[3:], ids_of)
    assert "frames" not in kept


@pytest.fixture
def noted(make_recorder, monkeypatch):
    """Return the notes of a capture at some level, and what reads the note."""
    monkeypatch.setattr(last_operations, "recorded_operations", lambda: [entry(3)])
    recorder = make_recorder()
    capture = Capture(recorder, probe.ProbeConfig(), lambda: None)
    capture.level = LEVEL_CODES[CaptureLevel.STEPS]
    notes = LastOperations(capture, ids_of, lambda: {"0[0,1]": 4})

    def read():
        manifest = read_json(recorder.directory / MANIFEST_NAME)
        return manifest["annotations"].get(LAST_OPERATIONS_KEY)

    return notes, capture, read


def test_the_exception_and_its_line_are_noted_and_stay(noted):
    """A later look, when another rank dies, would take the line of the program away."""
    notes, _, read = noted
    notes.note()
    assert read()["error"] is None
    try:
        dist.all_reduce(torch.ones(1))
    except ValueError as error:
        line = error.__traceback__.tb_lineno
        notes.note(error)
    notes.note()
    found = read()
    assert found["error"] == "ValueError"
    assert found["place"][1:] == [__file__, line]
    assert found["collectives"] == {"0[0,1]": 4}
    assert [one["collective_seq_id"] for one in found["entries"]] == [3]


def test_what_is_recorded_is_not_noted(noted):
    """Two accounts of the same operation would be compared with each other's numbers."""
    notes, capture, read = noted
    capture.level = LEVEL_CODES[CaptureLevel.COLLECTIVES]
    notes.note()
    assert read() is None


def test_what_goes_wrong_is_counted(noted, monkeypatch):
    """An exception in the hook of exceptions would be printed in place of the program's."""
    notes, capture, read = noted

    def fail():
        raise RuntimeError

    monkeypatch.setattr(last_operations, "recorded_operations", fail)
    notes.note(ValueError())
    assert read() is None
    capture.recorder.close()
    manifest = read_json(capture.recorder.directory / MANIFEST_NAME)
    assert manifest["counters"]["last_operations_errors"] == 1

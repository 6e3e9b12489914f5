"""Noted places become rows; notes that are damaged become none."""

from meshscope.analyze.load.call_places import call_places
from meshscope.probe.schema.manifest import CALL_PLACES_KEY
from meshscope.probe.schema.terms import CollectiveKind

KIND = list(CollectiveKind).index(CollectiveKind.ALL_REDUCE)
GOOD = [0, KIND, "float32", 4000, "train", "/job/train.py", 88]
GROUPS = [{"index": 0, "group_id": "0:0-1", "ranks": [0, 1]}]


def of(*notes):
    """Return the rows of one rank that noted these."""
    manifest = {"groups": GROUPS, "annotations": {CALL_PLACES_KEY: [*notes]}}
    return call_places({1: manifest}).to_pylist()


def test_a_note_is_a_row():
    """Fails when a place is lost between the manifest and the findings."""
    assert of(GOOD) == [
        {"rank": 1, "group_id": "0:0-1", "kind": "all_reduce", "dtype": "float32", "size_bytes": 4000,
         "function": "train", "file": "/job/train.py", "line": 88}
    ]  # fmt: skip


def test_damaged_notes_are_left_out():
    """Fails when a manifest that is damaged ends the whole diagnosis."""
    bad = (
        [7, *GOOD[1:]],
        [0, 99, *GOOD[2:]],
        [*GOOD[:3], -1, *GOOD[4:]],
        GOOD[:4],
        "x",
        [*GOOD[:6], True],
    )
    assert len(of(*bad, GOOD)) == 1
    for annotations in (None, [], {CALL_PLACES_KEY: 3}):
        assert not call_places({1: {"groups": GROUPS, "annotations": annotations}}).num_rows
    assert not call_places({1: {}}).num_rows

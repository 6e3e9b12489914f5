"""Noted places become rows; notes that are damaged become none."""

from meshscope.analyze.load.call_places import call_places
from meshscope.probe.schema.manifest import CALL_PLACES_KEY, MESSAGE_PLACES_KEY
from meshscope.probe.schema.terms import CollectiveKind

KIND = list(CollectiveKind).index(CollectiveKind.ALL_REDUCE)
GOOD = [0, KIND, "float32", 4000, "train", "/job/train.py", 88]
GROUPS = [{"index": 0, "group_id": "0:0-1", "ranks": [0, 1]}]


def of(*notes, key=CALL_PLACES_KEY):
    """Return the rows of one rank that noted these."""
    manifest = {"groups": GROUPS, "annotations": {key: [*notes]}}
    return call_places({1: manifest}).to_pylist()


def test_a_note_is_a_row():
    """Fails when a place is lost between the manifest and the findings."""
    assert of(GOOD) == [
        {"rank": 1, "group_id": "0:0-1", "kind": "all_reduce", "peer": -1, "dtype": "float32", "size_bytes": 4000,
         "function": "train", "file": "/job/train.py", "line": 88}
    ]  # fmt: skip


def test_a_note_of_a_message_is_a_row_with_its_peer():
    """Fails when the line of a send is lost, or taken for that of a message to another rank."""
    note = [0, 1, 3, "float32", 4000, "train", "/job/train.py", 88]
    (row,) = of(note, [0, 2, *note[2:]], [0, 1, -2, *note[3:]], note[:5], key=MESSAGE_PLACES_KEY)
    assert (row["kind"], row["peer"], row["size_bytes"], row["line"]) == ("recv", 3, 4000, 88)


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

"""The last collectives of ranks that did not record them."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.load.noted_collectives import noted_collectives

STEPS = trace_of(step=[{"rank": 0, "dur_ns": 10}, {"rank": 1, "dur_ns": 40}]).tables["step"]


def entry(number, *, elements=4, name="gloo:all_reduce", **facts):
    """Return an entry as a rank notes it."""
    return {
        "record_id": number,
        "collective_seq_id": number,
        "profiling_name": name,
        "time_created_ns": 1,
        "input_sizes": [[elements]],
        "input_dtypes": ["Float"],
        "output_sizes": [[elements]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": True,
        "process_group": ["g[0,1]", ""],
        **facts,
    }


def note(*entries, time_ns=50, **facts):
    """Return the manifest of a rank with this note."""
    return {"annotations": {"last_operations": {"time_ns": time_ns, "entries": entries, **facts}}}


def rows(manifests):
    """Return what is noted: rank, number, kind, bytes, whether it is open, and its line."""
    found = noted_collectives(STEPS, manifests).to_pylist()
    names = ("rank", "seq", "kind", "size_bytes", "is_open", "place")
    return [tuple(row[name] for name in names) for row in found]


def test_operations_are_numbered_as_backends_are_counted():
    """The last operation would stand one behind what the count of the same rank tells."""
    found = rows({0: note(entry(30), entry(31, elements=9, retired=False))})
    assert found == [
        (0, 29, "all_reduce", 16, False, None),
        (0, 30, "all_reduce", 36, True, None),
    ]


def test_after_an_exception_all_may_be_open_and_the_last_has_its_line():
    """The recorder ceases to follow what failed as it does what ended: nothing would be open."""
    manifest = note(entry(30), entry(31), error="RuntimeError", place=["step", "/job/a.py", 7])
    assert rows({1: manifest}) == [
        (1, 29, "all_reduce", 16, True, None),
        (1, 30, "all_reduce", 16, True, "step (/job/a.py:7)"),
    ]


def test_a_note_of_an_earlier_step_tells_nothing():
    """A rank that outlived another would be held in what it issued then."""
    assert rows({0: note(entry(3), time_ns=5), 1: note(entry(3), time_ns=30)}) == []


def test_a_note_of_an_earlier_attempt_tells_nothing():
    """A rank that did not come back would be held in an operation of the attempt before."""
    manifest = note(entry(3)) | {"newest_attempt": {"recorded": False}}
    assert rows({0: manifest}) == []


@pytest.mark.parametrize(
    "damage",
    [None, 7, "x", [None, 3], [{"process_group": 1}], [entry(1) | {"collective_seq_id": "x"}]],
)
def test_damage_gives_no_row(damage):
    """A torn manifest would end the diagnosis of all ranks."""
    manifest = note(place=[1], error=3)
    manifest["annotations"]["last_operations"]["entries"] = damage
    assert rows({0: manifest}) == []
    assert rows({0: {"annotations": None}}) == []

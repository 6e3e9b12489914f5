"""Long files come first where several processes run the tests."""

from tests.order import longest_first


class _Test:
    def __init__(self, nodeid, *marks):
        self.nodeid = nodeid
        self.marks = marks

    def get_closest_marker(self, name):
        return name if name in self.marks else None


def test_long_files_come_first_and_stay_whole():
    """Fails when a file of few tests that take minutes is begun last, beside an idle core."""
    items = [
        *(_Test(f"quick.py::{number}") for number in (3, 1, 2)),
        _Test("mixed.py::a"),
        _Test("long.py::b", "slow", "distributed", "alone"),
        _Test("mixed.py::b", "distributed"),
        _Test("long.py::a"),
    ]
    longest_first(items)
    wanted = ["long.py::b", "long.py::a", "mixed.py::a", "mixed.py::b"]
    assert [item.nodeid for item in items] == wanted + [f"quick.py::{n}" for n in (3, 1, 2)]

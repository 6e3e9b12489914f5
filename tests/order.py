"""The order of files among processes that each run one at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

SECONDS = {"alone": 15.0, "slow": 4.0, "distributed": 2.0, "browser": 2.0}
"""Roughly what a test takes that has such a mark, and no mark before it."""
OTHERS_S = 0.2


class Marked(Protocol):
    """What of a test is asked here."""

    nodeid: str

    def get_closest_marker(self, name: str) -> object | None:
        """Return the mark of that name, if the test has it."""
        ...


def longest_first(items: list[Marked]) -> None:
    """Sort tests so that files which take long come first; else the order stays as it is.

    A long file that comes last keeps one core busy and leaves the other idle.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        marks = (cost for name, cost in SECONDS.items() if item.get_closest_marker(name))
        seconds[_file_of(item)] += next(marks, OTHERS_S)
    items.sort(key=lambda item: -seconds[_file_of(item)])


def _file_of(item: Marked) -> str:
    return item.nodeid.split("::")[0]

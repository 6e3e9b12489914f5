"""Parametrised tests of which CI runs a few cases; everywhere else all of them run.

The other cases combine what these try with fewer settings. ``make test`` runs them before a release, and
whenever a change touches what they train.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that CI leaves out: those whose id its mark ``sampled(keep=…)`` does not name.

    None is left out of a test of which no named case was asked for; all are where it names none.
    """
    kept: set[str] = set()
    others: list[tuple[str, pytest.Item]] = []
    for item in items:
        if item.get_closest_marker("sampled") is None:
            continue
        function, _, case = item.nodeid.partition("[")
        if case.removesuffix("]") in _kept(item):
            kept.add(function)
        else:
            others.append((function, item))
    return [item for function, item in others if function in kept or not _kept(item)]


def _kept(item: pytest.Item) -> tuple[str, ...]:
    mark = item.get_closest_marker("sampled")
    kept: tuple[str, ...] = () if mark is None else mark.kwargs["keep"]
    return kept

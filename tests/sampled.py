"""Parametrised tests of which CI runs a few cases; everywhere else all of them run.

The other cases combine what these try with fewer settings, or repeat it with another seed. ``make test`` runs them
before a release, and whenever a change touches what they try.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that CI leaves out.

    A mark ``sampled(keep=…)`` names the cases to run. None is left out of a test of which no named case was asked
    for; all are where it names none. ``sampled(every=N)`` runs one case of N, the first by name among them.
    """
    functions: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            functions[item.nodeid.partition("[")[0]].append(item)
    return [item for cases in functions.values() for item in _without_sample(cases)]


def _without_sample(cases: list[pytest.Item]) -> list[pytest.Item]:
    said = _said(cases[0])
    if "every" in said:
        # By name: the order of the tests is another one in each run.
        ordered = sorted(cases, key=lambda item: item.nodeid)
        return [item for at, item in enumerate(ordered) if at % said["every"]]
    named = [item for item in cases if _case(item) in said["keep"]]
    return [item for item in cases if item not in named] if named or not said["keep"] else []


def _case(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[2].removesuffix("]")


def _said(item: pytest.Item) -> Mapping[str, Any]:
    mark = item.get_closest_marker("sampled")
    return {} if mark is None else mark.kwargs

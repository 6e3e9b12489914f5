"""A critical path as JSON values, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from meshscope.analyze.findings.critical_path import CriticalPath
from meshscope.analyze.wording.message import message_from_json, message_to_json

from ..timeline.paths import StepPath

_NUMBERS = ("rank", "stage", "start_ns", "end_ns", "dur_ns", "microbatch", "row")
_NAMES = ("class", "group_id", "link")


def path_to_json(shown: StepPath) -> dict[str, Any]:
    """Return a path as values of JSON types."""
    path = shown.path
    numbers = {name: path.pieces[name].to_numpy(np.int64).tolist() for name in _NUMBERS}
    names = {name: list(map(str, path.pieces[name])) for name in _NAMES}
    return {
        "step": path.step,
        "start_ns": path.start_ns,
        "end_ns": path.end_ns,
        "because": None if path.because is None else message_to_json(path.because),
        "longest_ns": path.longest_ns,
        "is_chained": path.is_chained,
        "pieces": numbers | names,
    }


def path_from_json(value: dict[str, Any]) -> StepPath:
    """Return the path of such values.

    Raises:
        LookupError: A value is missing.
        TypeError, ValueError: One is none of a path.
    """
    columns = value["pieces"]
    numbers = {name: np.asarray(columns[name], dtype=np.int64) for name in _NUMBERS}
    names = {name: list(map(str, columns[name])) for name in _NAMES}
    if any(column.ndim != 1 for column in numbers.values()):
        raise ValueError("no columns")
    pieces = pd.DataFrame(numbers | names)
    path = CriticalPath(
        step=int(value["step"]),
        start_ns=int(value["start_ns"]),
        end_ns=int(value["end_ns"]),
        because=None if value["because"] is None else message_from_json(value["because"]),
        longest_ns=int(value["longest_ns"]),
        is_chained=bool(value["is_chained"]),
        pieces=pieces[
            [
                *("rank", "stage", "start_ns", "end_ns", "dur_ns", "class", "microbatch"),
                *("group_id", "link", "row"),
            ]
        ],
    )
    return StepPath(path=path)

"""Noise of a baseline and the history of a job as documents."""

from __future__ import annotations

from typing import Any

from ...wording.quantities import percent, percent_change
from ...wording.words import counted
from ..document import Block, Heading, Lines, Table


def selftest_document(result: dict[str, Any]) -> list[Block]:
    """Return how often equal runs would fail."""
    rows = [
        [
            f"{row['base_runs']} + {row['candidate_runs']}",
            row["splits"],
            percent(row["failed"] / row["splits"]),
            percent(row["inconclusive"] / row["splits"]),
        ]
        for row in result["splits"]
    ]
    head = (
        f"False alarms on {result['runs']} equal runs, margin {percent(result['margin_frac'], 2)}"
    )
    columns = ["runs", "splits", "fail", "inconclusive"]
    return [Heading(head), Table(columns, rows)]


def calibration_document(result: dict[str, Any]) -> list[Block]:
    """Return what loss would be found with how many runs."""
    rows = [[row["candidate_runs"], f"+{percent(row['loss_frac'], 2)}"] for row in result["seen"]]
    head = (
        f"Loss found in 95 of 100 cases: {result['runs']} baseline runs, "
        f"CV {percent(result['cv_frac'], 2)}, margin {percent(result['margin_frac'], 2)}"
    )
    columns = ["candidate runs", "loss"]
    return [Heading(head), Table(columns, rows)]


def history_document(result: dict[str, Any]) -> list[Block]:
    """Return the changes of a history."""
    points = result["change_points"]
    head = f"{counted(len(points), 'change')} of the step time over {counted(len(result['runs']), 'run')}"
    rows = [
        [
            point["run"],
            f"{point['before_ns'] / 1e6:.3f}",
            f"{point['after_ns'] / 1e6:.3f}",
            percent_change(point["ratio"] - 1, 2),
            f"{point['chance']:.3f}",
        ]
        for point in points
    ]
    if not rows:
        return [Lines([head])]
    return [Heading(head), Table(["from run", "before ms", "after ms", "change", "p"], rows)]

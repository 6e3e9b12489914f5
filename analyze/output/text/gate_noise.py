"""Noise of a baseline and the history of a job as text."""

from __future__ import annotations

from typing import Any

from ...wording.text_table import text_table
from ...wording.words import counted
from .page import page


def selftest_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return how often equal runs would fail."""
    rows = [
        [
            f"{row['base_runs']} + {row['candidate_runs']}",
            row["splits"],
            f"{row['failed'] / row['splits']:.1%}",
            f"{row['inconclusive'] / row['splits']:.1%}",
        ]
        for row in result["splits"]
    ]
    head = f"False alarms on {result['runs']} equal runs, margin {result['margin_frac']:.2%}"
    columns = ["runs", "splits", "fail", "inconclusive"]
    return page([head, "", *text_table(columns, rows, markdown=markdown)], markdown=markdown)


def calibration_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return what loss would be found with how many runs."""
    rows = [[row["candidate_runs"], f"+{row['loss_frac']:.2%}"] for row in result["seen"]]
    head = (
        f"Loss found in 95 of 100 cases: {result['runs']} baseline runs, "
        f"CV {result['cv_frac']:.2%}, margin {result['margin_frac']:.2%}"
    )
    columns = ["candidate runs", "loss"]
    return page([head, "", *text_table(columns, rows, markdown=markdown)], markdown=markdown)


def history_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return the changes of a history."""
    points = result["change_points"]
    head = f"{counted(len(points), 'change')} of the step time over {counted(len(result['runs']), 'run')}"
    rows = [
        [
            point["run"],
            f"{point['before_ns'] / 1e6:.3f}",
            f"{point['after_ns'] / 1e6:.3f}",
            f"{point['ratio'] - 1:+.2%}",
            f"{point['chance']:.3f}",
        ]
        for point in points
    ]
    table = text_table(
        ["from run", "before ms", "after ms", "change", "p"], rows, markdown=markdown
    )
    return page([head, *(["", *table] if rows else [])], markdown=markdown)

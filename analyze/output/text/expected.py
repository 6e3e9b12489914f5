"""Expected volumes beside those seen, as a section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshscope.probe.schema.printable import listed

from ...explain.volumes.job import Unknown
from ...explain.volumes.reasons import ReasonCode
from ...explain.volumes.words import UNKNOWN, reason_text
from ...wording.labels import axis_label
from ...wording.quantities import percent_change
from ..document import Block, Lines, Table, section

TITLE = "Expected and seen, per step of one pipeline"
_MOST_STEPS = 8


def expected_blocks(result: dict[str, Any]) -> list[Block]:
    """Return the comparison, or why there is none.

    Args:
        result: As ``expected_to_json`` returns it.
    """
    if result["unknown"] is not None:
        why = UNKNOWN[Unknown(result["unknown"])]
        return section(TITLE, Lines([f"Expected volumes unknown: {why}."]))
    rows = [_row(row) for row in result["rows"]]
    headers = (
        *("axis", "operation", "expected", "expected MB", "seen", "seen MB"),
        *("differs", "likely reason"),
    )
    notes = [_assumed(result["assumed"]), *_steps_apart(result["rows"])]
    return section(TITLE, Table(headers, rows, notes=notes))


def _steps_apart(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row["steps_apart"]:
            steps = listed(row["steps_apart"], most=_MOST_STEPS)
            place = f"{axis_label(row['axis'])} {row['kind']}"
            yield f"{place} differs from its median in steps {steps}"


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    differs, code = row["difference_frac"], row["reason"]
    text = ""
    if code is not None:
        amount = row["reason_amount"]
        text = reason_text(ReasonCode(code), row["kind"], amount, row["element_bytes"])
    elif differs is None:
        text = "small"
    return (
        axis_label(row["axis"]),
        row["kind"],
        f"{row['expected_count_per_step']:,.0f}",
        f"{row['expected_bytes_per_step'] / 1e6:,.3f}",
        f"{row['seen_count_per_step']:,.0f}",
        f"{row['seen_bytes_per_step'] / 1e6:,.3f}",
        "not expected" if differs is None else percent_change(round(differs, 3) + 0.0),
        text,
    )


def _assumed(assumed: dict[str, Any]) -> str:
    """Return how the settings that no capture holds were chosen."""
    parts = [
        f"volumes as with ZeRO {assumed['zero']}",
        f"recomputation {assumed['recompute']}",
        f"{'' if assumed['sequence_parallel'] else 'no '}sequence parallelism",
        f"{assumed['element_bytes']} bytes per activation",
    ]
    how = "" if assumed["element_bytes_recorded"] else "; the type is not recorded"
    return f"Settings read from the traffic: {', '.join(parts)}{how}"

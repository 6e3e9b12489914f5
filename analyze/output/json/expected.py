"""The JSON form of expected volumes beside those seen."""

from __future__ import annotations

from typing import Any

from ...explain.volumes.compare import ExpectedSeen, VolumeRow


def expected_to_json(found: ExpectedSeen) -> dict[str, Any]:
    """Return the rows, what the formulas assume, or the code of what is unknown."""
    job = found.job
    return {
        "unknown": None if found.unknown is None else found.unknown.value,
        "assumed": None
        if job is None
        else {
            "zero": job.zero,
            "sequence_parallel": job.sequence_parallel,
            "recompute": job.recompute.value,
            "element_bytes": found.element_bytes,
            "element_bytes_recorded": found.has_type,
        },
        "rows": [_row(row) for row in found.rows],
    }


def _row(row: VolumeRow) -> dict[str, Any]:
    return {
        "axis": row.axis,
        "kind": row.kind,
        "expected_count_per_step": row.expected_count,
        "expected_bytes_per_step": round(row.expected_bytes),
        "seen_count_per_step": row.seen_count,
        "seen_bytes_per_step": round(row.seen_bytes),
        "element_bytes": row.element_bytes,
        "difference_frac": row.difference_frac,
        "reason": None if row.code is None else row.code.value,
        "reason_amount": row.amount,
        "steps_apart": list(row.steps_apart),
    }

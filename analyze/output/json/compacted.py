"""JSON form of what became of a run that was put into segments."""

from __future__ import annotations

from typing import Any

from ...scale.compact import Compacted


def compacted_to_json(made: Compacted) -> dict[str, Any]:
    """Return the versioned JSON form; keys may be added, these stay."""
    return {
        "version": 1,
        "run": made.run.name,
        "ranks": made.ranks,
        "rows": made.rows,
        "dropped_rows": made.dropped_rows,
        "kept_steps": None if made.kept_steps is None else list(made.kept_steps),
        "files_before": made.files_before,
        "files_after": made.files_after,
        "bytes_before": made.bytes_before,
        "bytes_after": made.bytes_after,
    }

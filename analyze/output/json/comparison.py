"""The JSON form of a comparison of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pandas as pd

from ...findings.comparison import Comparison, Side, finding_key
from ...tables.results import Diagnosis, Finding
from ...wording.limits import limits_to_json
from .diagnosis import finding_to_json, records_to_json
from .kernels import DEFAULT_TOP


def comparison_to_json(result: Comparison, top: int = DEFAULT_TOP) -> dict[str, Any]:
    """Return what changed, per step; ``docs/compare.md`` has the keys.

    Args:
        result: The two runs, compared.
        top: Operators and kernels that are listed, largest change first.
    """
    first, second = result.before.diagnosis, result.after.diagnosis
    return {
        "version": 1,
        "before": _run(result.before),
        "after": _run(result.after),
        "change_ns": result.change_ns,
        "change_frac": result.change_ns / first.step_time_ns,
        "error_ns": _number(result.error_ns),
        "setup": {name: {"before": old, "after": new} for name, (old, new) in result.setup.items()},
        "classes": records_to_json(result.classes),
        "findings": list(_findings(first, second)),
        "operators": _changes(result.operators, top),
        "kernels": _changes(result.kernels, top),
        **limits_to_json(result.limits),
    }


def _run(side: Side) -> dict[str, Any]:
    result = side.diagnosis
    return {
        "run": result.run["run_id"],
        "step_time_ns": result.step_time_ns,
        "steps": result.run["steps"],
        "ranks": result.run["captured_ranks"],
        "mfu": result.utilization.mfu,
        "tokens_per_s": result.utilization.tokens_per_s,
        **limits_to_json(result.limits),
    }


def _findings(before: Diagnosis, after: Diagnosis) -> Iterator[dict[str, Any]]:
    """Yield the findings of both runs, the new ones first, with what they cost in each."""
    old, new = map(_by_key, (before, after))
    for key in dict.fromkeys([*(key for key in new if key not in old), *new, *old]):
        found = new.get(key) or old[key]
        state = "new" if key not in old else "gone" if key not in new else "both"
        whole = finding_to_json(found)
        yield {
            "state": state,
            **{name: whole[name] for name in ("kind", "where", "claim")},
            "before_ns": _cost_ns(before, old.get(key)),
            "after_ns": _cost_ns(after, new.get(key)),
        }


def _by_key(side: Diagnosis) -> dict[tuple[str, str, int], Finding]:
    """Return findings by what they are about, with a number where several are about the same: none is lost."""
    found: dict[tuple[str, str, int], Finding] = {}
    for finding in side.findings:
        kind, place = finding_key(finding)
        number = next(at for at in count() if (kind, place, at) not in found)
        found[kind, place, number] = finding
    return found


def _cost_ns(run: Diagnosis, finding: Any) -> float | None:
    """Return what a finding costs in a step: 0 where there is none, None where it is not known."""
    if finding is None:
        return 0.0
    return None if finding.cost_frac is None else finding.cost_frac * run.step_time_ns


def _changes(table: pd.DataFrame, top: int) -> list[dict[str, Any]]:
    rows = records_to_json(table[table["change_ns"] != 0].head(top))
    return [{key: None if value == "" else value for key, value in row.items()} for row in rows]


def _number(value: float) -> float | None:
    return None if pd.isna(value) else value

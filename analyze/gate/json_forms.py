"""The JSON form of a gate; ``docs/gate.md`` has the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from ..tables.arrays import FloatArray
from ..wording.limits import limit_text, limits_to_json
from ..wording.message import message_to_json
from .change_points import change_points
from .facts import Baseline
from .judge import default_margin
from .paired import Look
from .results import Check, GateResult, Moved, Verdict
from .selftest import RUNS, own_margin, relabel, seen_change
from .words import headline, note_lines, pairs_line, why

EXIT_CODES = {
    Verdict.PASS: 0,
    Verdict.IMPROVED: 0,
    Verdict.FAIL: 1,
    Verdict.INCONCLUSIVE: 2,
    Verdict.INCOMPARABLE: 2,
}


def to_json(result: GateResult) -> dict[str, Any]:
    """Return the result for programs; keys are only ever added."""
    why_of_all, notes = headline(result), list(note_lines(result))
    return {
        "version": 2,
        "verdict": result.verdict.value,
        "why": str(why_of_all),
        "baseline_runs": result.baseline_runs,
        "candidate_runs": list(result.candidate_runs),
        "checks": [_check(check) for check in result.checks],
        "setup": _sides(result.setup),
        "explained": _sides(result.explained),
        "cost_shifts": [{"rose": rose, "fell": fell} for rose, fell in result.shifts],
        "classes": [{"class": row.name, **_moved(row)} for row in result.classes],
        "stages": [{"stage": row.name, **_moved(row)} for row in result.stages],
        "drifting_runs": list(result.drifting),
        "disturbed_runs": [{"run": name, "ratio": ratio} for name, ratio in result.disturbed],
        "broken_runs": [{"run": name, "ended": how} for name, how in result.broken],
        "notes": list(map(limit_text, notes)),
        "messages": {
            "why": message_to_json(why_of_all),
            "notes": list(map(message_to_json, notes)),
        },
        **limits_to_json(result.limits),
    }


def pairs_to_json(
    result: GateResult, looked: Sequence[tuple[Look, Check]], pairs: int, planned: int
) -> dict[str, Any]:
    """Return the result of pairs, with what each look found; ``notes`` says why they ended."""
    found = to_json(result)
    end = pairs_line(pairs, planned, is_decided=bool(looked))
    found["notes"].append(limit_text(end))
    found["messages"]["notes"].append(message_to_json(end))
    found["pairs"] = {
        "run": pairs,
        "planned": planned,
        "looks": [
            {
                "pairs": look.pairs,
                "level": look.level,
                "verdict": check.verdict.value,
                "low": check.low,
                "high": check.high,
            }
            for look, check in looked
        ],
    }
    return found


def _check(check: Check) -> dict[str, Any]:
    reason = why(check)
    return {
        "metric": check.metric,
        "verdict": check.verdict.value,
        "ratio": check.ratio,
        "low": check.low,
        "high": check.high,
        "why": str(reason),
        "messages": {"why": message_to_json(reason)},
        "reason": check.reason.value,
        "margin_frac": check.margin_frac,
        "before": check.before,
        "after": check.after,
        "step_frac": check.step_frac,
        "more_runs": check.more_runs,
    }


def _sides(differs: dict[str, tuple[object, object]]) -> dict[str, dict[str, object]]:
    return {
        name: {"baseline": before, "candidate": after} for name, (before, after) in differs.items()
    }


def _moved(row: Moved) -> dict[str, float]:
    return {"before_ns": row.before_ns, "after_ns": row.after_ns, "change_ns": row.change_ns}


def baseline_to_json(baseline: Baseline, path: Path) -> dict[str, Any]:
    """Return what a new baseline holds, for programs."""
    times = baseline.logs()
    return {
        "version": 1,
        "file": str(path),
        "runs": len(baseline.runs),
        "p50_ns": exp(float(times.mean())) if len(times) else None,
        "cv_frac": float(times.std(ddof=1)) if len(times) > 1 else None,
        "margin_frac": default_margin(times),
        "first": baseline.window.first,
        "count": baseline.window.count,
        "counts": len(baseline.counts),
        "drifting_runs": [run.name for run in baseline.runs if run.drift_frac],
        **limits_to_json(baseline.limits),
    }


def selftest_to_json(values: FloatArray, margin: float | None) -> dict[str, Any]:
    """Return the verdicts on relabelled runs of a baseline, logarithms of its medians."""
    used = own_margin(values, margin)
    splits = [asdict(one) for one in relabel(values, used)]
    return {"version": 1, "runs": len(values), "margin_frac": used, "splits": splits}


def calibration_to_json(values: FloatArray, margin: float | None) -> dict[str, Any]:
    """Return what loss would be found with how many runs of a candidate."""
    used = own_margin(values, margin)
    return {
        "version": 1,
        "runs": len(values),
        "cv_frac": float(values.std(ddof=1)),
        "margin_frac": used,
        "seen": [
            {"candidate_runs": runs, "loss_frac": seen_change(values, runs, used)} for runs in RUNS
        ],
    }


def history_to_json(made: Baseline) -> dict[str, Any]:
    """Return the step time of every run, and where it changed."""
    values = made.logs()
    points = change_points(values)
    edges = [0, *(point.index for point in points), len(values)]
    levels = [exp(float(np.median(values[a:b]))) for a, b in pairwise(edges)]
    return {
        "version": 1,
        "runs": [{"run": run.name, "p50_ns": run.p50_ns} for run in made.runs],
        "change_points": [
            {
                "index": point.index,
                "run": made.runs[point.index].name,
                "before_ns": before,
                "after_ns": after,
                "ratio": after / before,
                "chance": point.chance,
            }
            for point, (before, after) in zip(points, pairwise(levels), strict=True)
        ],
    }

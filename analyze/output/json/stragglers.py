"""JSON forms of the straggler analyses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...explain.straggler_metrics import Parts, PublishedMetrics, Repair, Shares
from ...tables.arrays import FloatArray
from ...wording.limits import limit_texts, limits_to_json
from ..straggler_tables import Stragglers
from .diagnosis import finding_to_json, records_to_json

HEATMAP_COLOURS = (1.0, 1.5)
"""Slowdowns at the ends of the published colour scale."""


def stragglers_to_json(result: Stragglers) -> dict[str, Any]:
    """Return the versioned JSON form; keys may be added, these stay."""
    return {
        "version": 1,
        "run": result.run,
        "step_time_ns": result.step_time_ns,
        "findings": [finding_to_json(finding) for finding in result.findings],
        "ranks": records_to_json(result.ranks),
        "steps": records_to_json(result.steps),
        "stages": records_to_json(result.stages),
        "untold": limit_texts(result.unknown_causes),
        **limits_to_json(result.limits),
    }


def published_to_json(metrics: PublishedMetrics) -> dict[str, Any]:
    """Return ``result``, ``ms`` and ``mw`` as the published tool writes them, and more beside them."""
    return {
        "version": 1,
        "result": _result(metrics),
        "ms": _repair(metrics.last_stage, "Ms"),
        "mw": _repair(metrics.worst_workers, "Mw"),
        "waste_frac": metrics.waste_frac,
        "heatmap": _heatmap(metrics),
        **limits_to_json(metrics.limits),
    }


def _result(metrics: PublishedMetrics) -> dict[str, Any]:
    def by_step(values: FloatArray) -> dict[str, float]:
        return _by_step(metrics, values)

    result: dict[str, Any] = {
        "job_meta": dict(metrics.meta),
        "step_t_base": by_step(metrics.measured_s),
        "step_t_nodelay": by_step(metrics.recorded_s),
        "step_t_noblk": by_step(metrics.ideal_s),
        "launch_slowdown": metrics.launch_slowdown,
        "blocking_slowdown": metrics.slowdown,
        "blocking_step_slowdown": _falling(by_step(metrics.step_slowdown)),
        "launch_step_slowdown": _falling(by_step(metrics.launch_step_slowdown)),
    }
    for suffix, form in (("", _overall), ("_per_step", _per_step)):
        for axis in ("dp_rank", "stage", "optype"):
            for name, parts in (
                ("blocking", metrics.slowdown_parts),
                ("launch", metrics.launch_parts),
            ):
                key = f"{name}_decompose_by_{axis}{suffix}"
                result[key] = None if parts is None else form(metrics, _shares(parts, axis))
    return result


def _shares(parts: Parts, axis: str) -> Shares:
    return {"dp_rank": parts.dp_rank, "stage": parts.stage, "optype": parts.optype}[axis]


def _overall(_: PublishedMetrics, shares: Shares) -> dict[str, float]:
    return _falling({str(name): value for name, value in shares.overall.items()})


def _per_step(metrics: PublishedMetrics, shares: Shares) -> dict[str, dict[str, float]]:
    return {
        str(step): _falling(
            {str(name): float(values[i]) for name, values in shares.per_step.items()}
        )
        for i, step in enumerate(metrics.steps.tolist())
    }


def _by_step(metrics: PublishedMetrics, values: FloatArray) -> dict[str, float]:
    return dict(zip(map(str, metrics.steps.tolist()), values.tolist(), strict=True))


def _falling(values: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _repair(repair: Repair, name: str) -> dict[str, float | None]:
    return {
        "trem": repair.removed_s,
        "tadd": repair.added_s,
        "tori": repair.recorded_s,
        "tideal": repair.ideal_s,
        "rem": repair.removed_frac,
        "add": repair.added_frac,
        name: repair.removed_frac,
    }


def _heatmap(metrics: PublishedMetrics) -> dict[str, Any] | None:
    """Return S_w by stage (rows) and replica (columns), None where S is not taken apart."""
    slowdowns = metrics.worker_slowdowns()
    if not slowdowns:
        return None
    dp_ranks = sorted({dp_rank for dp_rank, _ in slowdowns})
    stages = sorted({stage for _, stage in slowdowns})
    return {
        "dp_ranks": dp_ranks,
        "stages": stages,
        "ranks": [[metrics.ranks[dp_rank, stage] for dp_rank in dp_ranks] for stage in stages],
        "slowdown": [[slowdowns[dp_rank, stage] for dp_rank in dp_ranks] for stage in stages],
        "colours": list(HEATMAP_COLOURS),
    }

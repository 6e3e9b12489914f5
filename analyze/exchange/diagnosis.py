"""The JSON form of a diagnosis."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from typing import Any

from ..results import Cause, Diagnosis, Finding


def diagnosis_to_json(result: Diagnosis) -> dict[str, Any]:
    """Return the versioned JSON form; keys may be added, these stay."""
    use = result.utilization
    return {
        "version": 1,
        "run": result.run,
        "step_time_ns": result.step_time_ns,
        "mfu": use.mfu,
        "utilization": {
            "mfu": use.mfu,
            "hfu": use.hfu,
            "flops_per_step": use.flops_per_step,
            "flops_convention": use.flops_convention,
            "peak_flops": use.peak_flops,
            "peak_source": use.peak_source,
            "tokens_per_s": use.tokens_per_s,
            "unknown_because": use.unknown_because,
        },
        "waterfall": [
            {"class": bar.name, "frac": bar.frac, "dur_ns": bar.dur_ns} for bar in result.waterfall
        ],
        "causes": [_cause(cause) for cause in result.causes],
        "findings": [finding_to_json(finding) for finding in result.findings],
        "bubble": {
            "measured_frac": result.bubble.measured_frac,
            "ideal_frac": result.bubble.ideal_frac,
            "unknown_because": result.bubble.unknown_because,
        },
        "waiting": None if result.waiting is None else asdict(result.waiting),
        "ranks": records_to_json(result.stragglers),
        "memory": records_to_json(result.memory),
        "groups": records_to_json(result.groups),
        "metrics": result.metrics,
        "model_error_frac": result.model_error_frac,
        "untold": list(result.untold),
        "limits": list(result.limits),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "where": dict(cause.where),
        "share_frac": cause.share_frac,
        "removal_gain_frac": cause.removal_gain_frac,
        "removal_gain_interval": _ends(cause.removal_gain_interval),
        "direct_ns": None if isnan(cause.direct_ns) else cause.direct_ns,
        "induced_wait_ns": None if isnan(cause.induced_wait_ns) else cause.induced_wait_ns,
        "relief_ns": cause.relief_ns,
    }


def _ends(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return one finding; keys may be added, these stay."""
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "where": dict(finding.where),
        "claim": finding.claim,
        "cost_frac": finding.cost_frac,
        "removal_gain_frac": finding.removal_gain_frac,
        "removal_gain_interval": _ends(finding.removal_gain_interval),
        "confidence": finding.confidence,
        "evidence": list(finding.evidence),
        "remedy": finding.remedy,
    }


def records_to_json(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a frame with missing values as None."""
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows

"""The JSON form of a diagnosis."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from typing import Any

from ...tables.results import Cause, Diagnosis, Finding
from ...wording.limits import limit_texts, limits_to_json, reason_to_json
from ...wording.message import message_to_json


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
            "devices_per_rank": use.devices_per_rank,
            "tokens_per_s": use.tokens_per_s,
            **reason_to_json(use.unknown_because),
            "mfu_by_convention": dict(use.mfu_by_convention),
            "flops_by_convention": dict(use.flops_by_convention),
        },
        "waterfall": [
            {"class": bar.name, "frac": bar.frac, "dur_ns": bar.dur_ns} for bar in result.waterfall
        ],
        "devices": [asdict(use) for use in result.devices],
        "causes": [_cause(cause) for cause in result.causes],
        "findings": [finding_to_json(finding) for finding in result.findings],
        "bubble": {
            "measured_frac": result.bubble.measured_frac,
            "ideal_frac": result.bubble.ideal_frac,
            **reason_to_json(result.bubble.unknown_because),
        },
        "waiting": None if result.waiting is None else asdict(result.waiting),
        "ranks": records_to_json(result.stragglers),
        "memory": records_to_json(result.memory),
        "memory_expectation": asdict(result.expectation)
        | reason_to_json(result.expectation.unknown_because),
        "groups": records_to_json(result.groups),
        "metrics": result.metrics,
        "model_error_frac": result.model_error_frac,
        "untold": limit_texts(result.unknown_causes),
        **limits_to_json(result.limits),
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
        "gain_as_host_frac": cause.gain_as_host_frac,
        "hidden_by": None
        if cause.hidden_by is None
        else {**cause.hidden_by._asdict(), "where": dict(cause.hidden_by.where)},
    }


def _ends(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return one finding; keys may be added, these stay."""
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "where": dict(finding.where),
        "claim": str(finding.claim),
        "cost_frac": finding.cost_frac,
        "removal_gain_frac": finding.removal_gain_frac,
        "removal_gain_interval": _ends(finding.removal_gain_interval),
        "confidence": finding.confidence,
        "evidence": [str(fact) for fact in finding.evidence],
        "remedy": str(finding.remedy),
        "messages": {
            "claim": message_to_json(finding.claim),
            "evidence": [message_to_json(fact) for fact in finding.evidence],
            "remedy": message_to_json(finding.remedy),
        },
        "cause": finding.cause,
    }


def records_to_json(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a frame with missing values as None."""
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows

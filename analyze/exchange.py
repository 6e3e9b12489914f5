"""JSON forms of the tables that other programs rely on; keys may be added, these stay."""

from __future__ import annotations

from typing import Any

import pandas as pd

from meshscope.probe.schema.errors import MeshscopeError

from .breakdown import device_breakdown
from .matching import match_collectives
from .results import Cause, Diagnosis, Finding
from .trace import Trace
from .waiting import SYNCHRONISING
from .words import is_missing, sentence


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
        "findings": [_finding(finding) for finding in result.findings],
        "bubble": {
            "measured_frac": result.bubble.measured_frac,
            "ideal_frac": result.bubble.ideal_frac,
            "unknown_because": result.bubble.unknown_because,
        },
        "ranks": _records(result.stragglers),
        "memory": _records(result.memory),
        "groups": _records(result.groups),
        "metrics": result.metrics,
        "model_error_frac": result.model_error_frac,
        "limits": list(result.limits),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "where": dict(cause.where),
        "share_frac": cause.share_frac,
        "removal_gain_frac": cause.removal_gain_frac,
        "direct_ns": cause.direct_ns,
        "induced_wait_ns": cause.induced_wait_ns,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "where": dict(finding.where),
        "claim": finding.claim,
        "cost_frac": finding.cost_frac,
        "removal_gain_frac": finding.removal_gain_frac,
        "confidence": finding.confidence,
        "evidence": list(finding.evidence),
        "remedy": finding.remedy,
    }


def _records(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a frame with missing values as None."""
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def breakdown_to_json(trace: Trace, step: int | None = None) -> dict[str, Any]:
    """Return where the device time of each rank went, over all device events or one step.

    Raises:
        MeshscopeError: The step is not in the capture.
    """
    known = sorted(set(trace.frame("kernel")["step"].tolist()) - {-1})
    if step is not None and step not in known:
        raise MeshscopeError(
            f"step {step} has no device events",
            where=str(trace.path),
            remedy=f"Steps with device events: {known[0]}..{known[-1]}" if known else "",
        )
    rows = device_breakdown(trace, step).to_dict("records")
    limits = list(map(sentence, trace.limits))
    if not known and trace.frame("kernel").empty:
        limits.append("The capture has no device events: use diagnose for a host capture.")
    return {
        "version": 1,
        "ranks": {str(row.pop("rank")): row for row in rows},
        "limits": limits,
    }


def collectives_to_json(trace: Trace) -> dict[str, Any]:
    """Return every collective matched across ranks, with who waited and who came last."""
    match = match_collectives(trace)
    waits: dict[tuple[str, int], dict[str, Any]] = {}
    members = match.members
    for group_id, seq, rank, wait in zip(
        *(members[name].tolist() for name in ("group_id", "seq", "rank", "wait_ns")), strict=True
    ):
        waits.setdefault((group_id, seq), {})[str(rank)] = _known(wait)
    rows = match.collectives.to_dict("records")
    return {
        "version": 1,
        "groups": [
            {"group_id": str(row["group_id"]), "axis": row["axis"], "ranks": list(row["ranks"])}
            for row in trace.frame("group").to_dict("records")
        ],
        "collectives": [
            {
                **{name: row[name] for name in ("group_id", "seq", "kind", "size_bytes")},
                "wire_ns": _known(row["wire_ns"]),
                "wait_ns": waits.get((row["group_id"], row["seq"]), {}),
                "last_rank": _known(row["last_rank"]),
                "bus_bandwidth_bytes_per_s": _known(row["bus_bandwidth_bytes_per_s"]),
            }
            for row in rows
        ],
        "ranks": _by_rank(members),
        "limits": list(map(sentence, (*trace.limits, *match.limits))),
    }


def _by_rank(members: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the sums over the collectives that nobody can leave before all have come.

    The root of a broadcast leaves at once, and a group of one waits for nobody.
    """
    kinds = [kind.value for kind in SYNCHRONISING]
    size = members.groupby(["group_id", "seq"])["rank"].transform("size")
    rows = members[members["kind"].isin(kinds) & (size > 1)].groupby("rank")
    table = rows.agg(
        wait_ns=("wait_ns", "sum"), arrived_last=("arrived_last", "sum"), count=("seq", "size")
    )
    return {str(rank): row for rank, row in _rows(table).items()}


def _rows(table: pd.DataFrame) -> dict[Any, dict[str, Any]]:
    """Return the rows of a frame by their index."""
    rows: Any = table.to_dict("index")
    found: dict[Any, dict[str, Any]] = rows
    return found


def _known(value: Any) -> Any:
    """Return None for pandas' missing value, which JSON does not have."""
    return None if is_missing(value) else value

"""What follows from a fault that was asked for, where no steps can be compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.truth.live.cases import LiveCase

from meshscope.analyze.tables.results import Diagnosis
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.config.fault_plan import parse_fault
from meshscope.reference_trainer.config.fault_spec import FaultSpec

MAX_CLOCK_ERROR_MS = 0.5
"""Of an offset that the collectives of a job tell: gloo's members leave one that far apart."""
MAX_SLOPE_ERROR = 0.25
"""Of the growth of memory, which the process' own allocations blur."""
MAX_BUBBLE_ERROR = 0.05
"""Of the share of a step that the schedule imposes: an ideal step has no optimizer."""


def reported_of(case: LiveCase, trace: Trace, result: Diagnosis) -> tuple[str, bool]:
    """Return what the diagnosis says of the size of the fault, and whether that is right."""
    said, right = [], True
    for kind, check in _CHECKS.items():
        spec = next((s for s in map(parse_fault, case.faults) if s.kind == kind), None)
        if spec is not None:
            words, is_right = check(spec, trace, result)
            said.append(words)
            right &= is_right
    if case.kinds == ("pipeline_bubble",):
        words, is_right = _bubble(result)
        said.append(words)
        right &= is_right
    return "; ".join(said), right


def _offset(spec: FaultSpec, trace: Trace, result: Diagnosis) -> tuple[str, bool]:
    """The corrections say how far the clocks were apart; which of two is wrong, nobody knows."""
    rows = trace.frame("clock_sync")
    found = abs(rows["offset_ns"]).max() / 1e6 if len(rows) else 0.0
    drift = spec.drift_ppm * 1e-6 * result.step_time_ns / 1e6 * (result.run["last_step"] + 20)
    right = abs(found - spec.offset_ms) <= MAX_CLOCK_ERROR_MS + drift
    return f"offset {found:.2f} ms, asked for {spec.offset_ms:.0f}", bool(right)


def _growth(spec: FaultSpec, trace: Trace, result: Diagnosis) -> tuple[str, bool]:
    finding = next((f for f in result.findings if f.kind == "memory_headroom"), None)
    reported = re.search(
        r"by ([\d.]+) (MiB|GiB) a step", "" if finding is None else str(finding.claim)
    )
    if reported is None:
        return "no growth", False
    found = float(reported[1]) * (1 << 20 if reported[2] == "MiB" else 1 << 30) / 1e6
    right = abs(found / spec.megabytes - 1) <= MAX_SLOPE_ERROR
    return f"{found:.2f} MB a step, asked for {spec.megabytes:.0f}", right


def _bubble(result: Diagnosis) -> tuple[str, bool]:
    """Return the share of the step; (p - 1) / (m + p - 1) of an ideal one (GPipe, 1F1B)."""
    stages, microbatches = int(result.run[Axis.PP.value]), int(result.run["microbatches"])
    ideal = (stages - 1) / (microbatches + stages - 1)
    finding = next((f for f in result.findings if f.kind == "pipeline_bubble"), None)
    found = 0.0 if finding is None else finding.cost_frac or 0.0
    return f"{found:.1%}, {ideal:.1%} of an ideal step", abs(found - ideal) <= MAX_BUBBLE_ERROR


_CHECKS: Mapping[str, Callable[[FaultSpec, Trace, Diagnosis], tuple[str, bool]]] = {
    "clock_skew": _offset,
    "memory_growth": _growth,
}

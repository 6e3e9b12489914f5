"""One line of the run list, and from what it is made."""

from __future__ import annotations

from dataclasses import dataclass

from meshscope.analyze import Diagnosis
from meshscope.analyze.findings.none_found import nothing_found

from .summarised_run import SummarisedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One line of the run list."""

    run_id: str
    modified_ns: int
    """Newest modification of what was recorded, ns since the epoch."""
    state: str
    """``ready``, ``pending`` (not analysed, or written to since) or ``unreadable``."""
    error: str = ""
    layout: str = ""
    step_time_ns: float | None = None
    mfu: float | None = None
    mfu_unknown_because: str = ""
    top_finding: str = ""
    severity: str = ""
    is_summary: bool = False
    """Whether it is known from summaries only."""


def unreadable_entry(run_id: str, modified_ns: int, error: str) -> RunEntry:
    """Return the line of what cannot be read."""
    return RunEntry(run_id=run_id, modified_ns=modified_ns, state="unreadable", error=error)


def summary_entry(run: SummarisedRun, modified_ns: int) -> RunEntry:
    """Return the line of a large run, from its summaries."""
    return RunEntry(
        run_id=run.run_id,
        modified_ns=modified_ns,
        state="ready",
        layout=run.layout,
        step_time_ns=run.answer.step_ns,
        mfu_unknown_because="shown from summaries, which contain no model and no peak",
        top_finding=run.claim,
        severity=run.severity,
        is_summary=True,
    )


def ready_entry(run_id: str, diagnosis: Diagnosis, layout: str, modified_ns: int) -> RunEntry:
    """Return the line of a run that was analysed."""
    top = diagnosis.findings[0] if diagnosis.findings else None
    return RunEntry(
        run_id=run_id,
        modified_ns=modified_ns,
        state="ready",
        layout=layout,
        step_time_ns=diagnosis.step_time_ns,
        mfu=diagnosis.utilization.mfu,
        mfu_unknown_because=str(diagnosis.utilization.unknown_because),
        top_finding=str(top.claim if top else nothing_found(diagnosis)),
        severity=str(top.severity) if top else "",
    )

"""A run beside the one before it: which that is, and what a gate says of the two."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshscope.analyze.explain.run_account import Account
from meshscope.analyze.findings.comparison import Side, side_of_account
from meshscope.analyze.gate import loaded
from meshscope.analyze.gate.captures import run_of
from meshscope.analyze.gate.compare import compare
from meshscope.analyze.gate.json_forms import to_json
from meshscope.analyze.tables.results import Diagnosis
from meshscope.analyze.wording.message import error_to_json
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.terms import FindingKind

from .run_entry import RunEntry


class ComparedRun(NamedTuple):
    """One run, reduced to what is compared."""

    side: Side
    gate: loaded.LoadedRun


def compared_run(account: Account, run_id: str, diagnosis: Diagnosis) -> ComparedRun:
    """Return what of a measured run is compared with another one."""
    ends = [finding for finding in diagnosis.findings if finding.is_end]
    broken = "; ".join(str(end.claim) for end in ends if end.kind is not FindingKind.JOB_ENDED)
    return ComparedRun(side_of_account(account), run_of(account, run_id, broken))


def gate_verdict(before: ComparedRun, after: ComparedRun) -> dict[str, Any]:
    """Return what ``meshscope gate`` says of a run against one other as its baseline, or why it says nothing."""
    try:
        result = compare(loaded.baseline_of([before.gate]), [after.gate])
    except MeshscopeError as error:
        return {"verdict": None, "why": None, **error_to_json(error)}
    result_json = to_json(result)
    return {name: result_json[name] for name in ("verdict", "why", "notes", "checks")}


def last_like(entries: list[RunEntry], run_id: str) -> str | None:
    """Return the newest run of the same mesh that was written before a run; None without any.

    Args:
        entries: Those of the folder.
        run_id: The run.
    """
    own = next((entry for entry in entries if entry.run_id == run_id), None)
    if own is None or not own.layout:
        return None
    like = [
        entry
        for entry in entries
        if entry.run_id != run_id
        and entry.state == "ready"
        and not entry.is_summary
        and entry.layout == own.layout
        and (entry.modified_ns, entry.run_id) < (own.modified_ns, own.run_id)
    ]
    return max(like, key=lambda entry: entry.modified_ns).run_id if like else None

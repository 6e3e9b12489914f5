"""The account of a capture without steps: what broke off, or memory; nothing about speed."""

from __future__ import annotations

from math import nan

import pandas as pd

from .capture.trace import FLIGHT_RECORDER, Trace
from .ledger.classes import CLASSES, REFINED
from .memory import memory_by_stage
from .metrics import metrics_without_steps
from .results import Bubble, Diagnosis, Finding, Utilization
from .rules.capture import missing_ranks
from .rules.hang import hang_findings
from .rules.memory import fullest_rank
from .whereabouts import located
from .words import sentence

_NO_STEPS = "there are no steps"
_LIMIT = "no steps were recorded: there is no step time, and no account of it"
_DUMP_LIMIT = (
    "a dump does not say when it was made: if the job was still running, the ranks that are named "
    "are those that were last at that moment"
)


_EVENTS = ("step", "span", "kernel", "collective", "p2p")
"""Tables that a capture with an account of time has, one at least."""


def has_no_steps(trace: Trace) -> bool:
    """Return whether a capture is of a kind that never has steps, or of a job that came to none.

    A dump has none, nor one of memory alone, nor a job that broke off before anything that it did had ended.
    """
    if trace.origin == FLIGHT_RECORDER or _broke_off_at_once(trace):
        return True
    return bool(trace.row_count("memory")) and not any(map(trace.row_count, _EVENTS))


def _broke_off_at_once(trace: Trace) -> bool:
    if not trace.row_count("progress") or trace.row_count("step") or trace.row_count("span"):
        return False
    return not any(trace.frame(name)["end_ns"].notna().any() for name in ("collective", "p2p"))


def diagnose_without_steps(trace: Trace) -> Diagnosis:
    """Return the findings of a capture that has no steps; every time and share is unknown."""
    found: list[Finding] = [
        *hang_findings(trace),
        *fullest_rank(trace),
        *missing_ranks(trace),
    ]
    limits = [*trace.limits, _LIMIT]
    memory = memory_by_stage(trace)
    metrics = metrics_without_steps(memory)
    if trace.origin == FLIGHT_RECORDER:
        limits.append(_DUMP_LIMIT)
    return Diagnosis(
        run=_run_header(trace),
        step_time_ns=nan,
        utilization=Utilization(
            mfu=None,
            hfu=None,
            flops_per_step=None,
            flops_convention="",
            peak_flops=None,
            peak_source="unknown",
            tokens_per_s=None,
            unknown_because=_NO_STEPS,
        ),
        waterfall=(),
        causes=(),
        findings=tuple(located(finding, trace) for finding in found),
        limits=tuple(map(sentence, limits)),
        ledger=pd.DataFrame(columns=["rank", "step", "step_ns", *CLASSES, *REFINED]),
        stragglers=_ranks(trace),
        bubble=Bubble(
            None, None, pd.DataFrame(columns=["stage", "wait_ns", "wait_frac"]), _NO_STEPS
        ),
        memory=memory,
        groups=pd.DataFrame(
            columns=["group_id", "axis", "ranks", "operations", "wire_ns", "wait_ns", "size_bytes"]
        ),
        untold=(sentence(_LIMIT),),
        metrics=metrics.values,
        unknown_because=metrics.unknown_because,
    )


def _run_header(trace: Trace) -> dict[str, object]:
    run = dict(trace.run)
    for axis in ("tp", "pp", "dp", "cp", "ep", "vpp", "order"):
        run[axis] = getattr(trace.layout, axis, run.get(axis))
    run |= {"origin": trace.origin, "captured_ranks": len(trace.ranks), "steps": 0}
    return run | {"first_step": None, "last_step": None}


def _ranks(trace: Trace) -> pd.DataFrame:
    table = trace.places(trace.ranks)
    unknown = (
        "slowdown",
        "excess_ns",
        "removal_gain_frac",
        "wait_ns",
        "early_ns",
        "wait_caused_ns",
    )
    return table.assign(**dict.fromkeys(unknown, nan), arrived_last=0, collectives=0, chance=1.0)

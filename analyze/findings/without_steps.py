"""The account of a capture without steps: what broke off, or memory; nothing about speed."""

from __future__ import annotations

from math import nan

import pandas as pd

from ..account.memory.by_stage import memory_by_stage
from ..explain.memory.expected import expected_memory, with_expected
from ..explain.metrics import NO_STEPS, metrics_without_steps
from ..tables.classes import CLASSES, REFINED
from ..tables.results import Bubble, Diagnosis, Finding, Utilization
from ..tables.trace import Trace, places_of
from ..wording.limits import Limit, ordered
from ..wording.message import Text, message
from .location import located
from .rules.capture import missing_ranks
from .rules.differing import differing_findings
from .rules.ended import how_it_ended
from .rules.memory import fullest_rank, out_of_memory
from .rules.memory_stages import heavy_stages

_EVENTS = ("step", "span", "kernel", "collective", "p2p")
"""Tables that a capture with an account of time has, one at least."""


def has_no_steps(trace: Trace) -> bool:
    """Return whether a capture is of a kind that never has steps, or of a job that came to none.

    A dump has none, nor one of memory alone, nor a job that broke off before anything that it did had ended.
    """
    if not trace.capabilities.has_steps or _broke_off_at_once(trace):
        return True
    return bool(trace.row_count("memory")) and not any(map(trace.row_count, _EVENTS))


def _broke_off_at_once(trace: Trace) -> bool:
    if not trace.row_count("progress") or trace.row_count("step") or trace.row_count("span"):
        return False
    return not any(trace.frame(name)["end_ns"].notna().any() for name in ("collective", "p2p"))


def diagnose_without_steps(trace: Trace, because: Text = NO_STEPS) -> Diagnosis:
    """Return the findings of a capture that has no steps; every time and share is unknown.

    Args:
        trace: The capture.
        because: Why there is nothing to account for.
    """
    memory = memory_by_stage(trace)
    expectation = expected_memory(trace, memory)
    memory = with_expected(memory, expectation.found)
    found: list[Finding] = [
        *how_it_ended(trace, None),
        *differing_findings(trace),
        *out_of_memory(trace),
        *fullest_rank(trace),
        *heavy_stages(memory, trace, expectation.found),
        *missing_ranks(trace),
    ]
    no_steps = message("why.there_are_no_steps")
    limit = message("unknown.without_steps", because=because)
    limits: list[Limit] = [*trace.limits, limit]
    metrics = metrics_without_steps(memory)
    if trace.capabilities.sees_every_end:
        limits.append(message("doubt.dump"))
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
            unknown_because=no_steps,
        ),
        waterfall=(),
        causes=(),
        findings=tuple(located(finding, trace) for finding in found),
        limits=ordered(limits),
        ledger=pd.DataFrame(columns=["rank", "step", "step_ns", *CLASSES, *REFINED]),
        stragglers=_ranks(trace),
        bubble=Bubble(
            None, None, pd.DataFrame(columns=["stage", "wait_ns", "wait_frac"]), no_steps
        ),
        memory=memory,
        expectation=expectation.kept,
        groups=pd.DataFrame(
            columns=["group_id", "axis", "ranks", "operations", "wire_ns", "wait_ns", "size_bytes"]
        ),
        unknown_causes=(limit,),
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
    table = places_of(trace, trace.ranks)
    unknown = (
        "slowdown",
        "excess_ns",
        "removal_gain_frac",
        "wait_ns",
        "early_ns",
        "wait_caused_ns",
    )
    return table.assign(**dict.fromkeys(unknown, nan), arrived_last=0, collectives=0, chance=1.0)

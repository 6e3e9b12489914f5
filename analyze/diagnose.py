"""The whole account of one run, from tables to findings."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.terms import Axis

from .account import Account
from .attribution import MAX_UNSEEN, Attribution, attribute
from .bubble import microbatches_of, pipeline_bubble, schedule_of
from .causes import ranks_of
from .clocks import clock_offsets
from .communication import CommunicationEvents, communication_events
from .effects import stage_of_ranks
from .findings import find
from .ledger import CLASSES, COMPUTE_CLASSES, Ledger, build_ledger
from .memory import memory_by_stage, peak_memory_frac
from .program import build_program
from .results import Bar, Diagnosis, Utilization
from .stepless import diagnose_without_steps
from .steps import StepWindows, step_windows
from .trace import FLIGHT_RECORDER, Trace
from .utilization import utilization
from .waiting import traffic_by_group, waits_by_rank
from .words import sentence

MOST_LIMITS_IN_ERROR = 3
_WRONG_CLOCKS = "no replay: the clocks of some ranks are wrong (see the finding clock_skew)"


def diagnose(trace: Trace) -> Diagnosis:
    """Return where the time of a run went, why, and what to do.

    A dump of a flight recorder has no steps: only who did not arrive is told.

    Raises:
        TraceFormatError: The capture holds no event that lies in a step.
    """
    if trace.origin == FLIGHT_RECORDER:
        return diagnose_without_steps(trace)
    account, limits = _measure(trace)
    findings = find(account)
    attribution = account.attribution
    measured = account.windows.step_time_ns
    return Diagnosis(
        run=_run_header(account),
        step_time_ns=measured,
        utilization=account.utilization,
        waterfall=waterfall(account.ledger, account.utilization, measured),
        causes=attribution.causes if attribution else (),
        findings=findings,
        limits=limits,
        ledger=account.ledger.by_step,
        stragglers=_stragglers(account),
        bubble=account.bubble,
        memory=account.memory,
        groups=traffic_by_group(account.events, trace.frame("group"), len(account.windows.steps)),
        waiting=attribution.waiting if attribution is not None else None,
        model_error_frac=(
            (measured - attribution.replayed_ns) / measured
            if attribution is not None and attribution.replayed_ns is not None
            else None
        ),
        metrics=_metrics(account),
    )


def _measure(trace: Trace) -> tuple[Account, tuple[str, ...]]:
    windows = _windows(trace)
    events = communication_events(trace, windows)
    ledger = build_ledger(trace, windows, events)
    ranks = windows.ranks.tolist()
    waits = waits_by_rank(events, ranks)
    offsets = clock_offsets(events)
    attribution: Attribution | None = None
    replay_limits: tuple[str, ...] = (_WRONG_CLOCKS,)
    if offsets.empty:
        attribution, replay_limits = _replay(trace, ledger, windows, events, waits)
    account = Account(
        trace=trace,
        windows=windows,
        events=events,
        ledger=ledger,
        attribution=attribution,
        utilization=utilization(trace, windows.step_time_ns),
        bubble=pipeline_bubble(trace, ledger),
        memory=memory_by_stage(trace),
        waits=waits,
        clock_offsets=offsets,
        stage=stage_of_ranks(trace, ranks),
    )
    seen_limits = (*trace.limits, *_clock_limits(trace))
    limits = (*seen_limits, *windows.limits, *events.limits, *replay_limits)
    return account, tuple(map(sentence, limits))


def _clock_limits(trace: Trace) -> tuple[str, ...]:
    """Return what a host capture of a run on GPUs cannot tell."""
    device = str(trace.run.get("device_name") or "")
    if trace.origin != "meshscope" or not device or device.startswith("CPU"):
        return ()
    if trace.row_count("kernel"):
        return ()
    return (
        f"times are those of the host: on {device} a span says when work was launched, "
        "not when the device ran it, and communication has no end unless the host waited for it",
    )


def _windows(trace: Trace) -> StepWindows:
    windows = step_windows(trace)
    if not windows.frame.empty and windows.step_time_ns > 0:
        return windows
    what = "no step and no event was recorded"
    if len(trace.frame("step")):
        what = "no step was finished on every captured rank"
    if not windows.frame.empty:
        what = "the recorded steps have no length"
    remedy = "Record at least one whole step, then diagnose again"
    if trace.limits:
        remedy = " ".join(["What was read:", *map(sentence, trace.limits[:MOST_LIMITS_IN_ERROR])])
    raise TraceFormatError(what, where=str(trace.path), remedy=remedy)


def _replay(
    trace: Trace,
    ledger: Ledger,
    windows: StepWindows,
    events: CommunicationEvents,
    waits: pd.DataFrame,
) -> tuple[Attribution | None, tuple[str, ...]]:
    if events.frame.empty:
        return None, ("no communication was recorded: who makes others wait cannot be known",)
    try:
        program = build_program(windows, events, ledger)
    except ValueError as error:
        return None, (f"no replay: {error} (clocks of different hosts?)",)
    attribution = attribute(trace, program, ledger, events, waits)
    return attribution, attribution.limits


def waterfall(ledger: Ledger, use: Utilization, step_time_ns: float) -> tuple[Bar, ...]:
    """Return the classes of the ledger as shares of the step time, which sum to 1.

    Where MFU is known, compute is split into ``useful`` (model FLOPs at peak) and
    ``compute_overhead``, the rest of it (signed: a wrong peak would show here).
    """
    by_step = ledger.by_step
    total = float(by_step["step_ns"].sum())
    shares = {name: float(by_step[name].sum()) / total for name in CLASSES}
    bars: list[tuple[str, float]] = []
    if use.mfu is not None:
        compute = sum(shares.pop(name) for name in COMPUTE_CLASSES if name != "optimizer")
        bars = [("useful", use.mfu), ("compute_overhead", compute - use.mfu)]
    bars += [(name, frac) for name, frac in shares.items() if frac > 0 or name == "unattributed"]
    return tuple(Bar(name=name, frac=frac, dur_ns=frac * step_time_ns) for name, frac in bars)


def _run_header(account: Account) -> dict[str, object]:
    trace, run = account.trace, dict(account.trace.run)
    layout = trace.layout
    for axis in ("tp", "pp", "dp", "cp", "ep", "vpp", "order"):
        run[axis] = getattr(layout, axis) if layout is not None else run.get(axis)
    run["schedule"] = schedule_of(trace)
    run["microbatches"] = microbatches_of(trace)
    run["origin"] = trace.origin
    run["captured_ranks"] = len(trace.ranks)
    run["steps"] = len(account.windows.steps)
    run["first_step"] = int(account.windows.steps[0])
    run["last_step"] = int(account.windows.steps[-1])
    return run


def _stragglers(account: Account) -> pd.DataFrame:
    table = pd.DataFrame({"rank": account.windows.ranks})
    layout = account.trace.layout
    for axis in (Axis.PP, Axis.DP, Axis.TP):
        table[axis.value] = [
            layout.coordinates(rank)[axis.value] if layout is not None else -1
            for rank in table["rank"].tolist()
        ]
    attribution = account.attribution
    if attribution is None:
        table = table.assign(slowdown=np.nan, excess_ns=np.nan, removal_gain_frac=np.nan)
    else:
        excess = attribution.ranks[["rank", "slowdown", "excess_ns"]]
        table = table.merge(excess, on="rank", how="left")
        gains = {
            rank: cause.removal_gain_frac
            for cause in attribution.causes
            if cause.kind == "straggler_rank"
            for rank in ranks_of(cause)
        }
        table["removal_gain_frac"] = table["rank"].map(gains)
    table = table.merge(account.waits, on="rank", how="left")
    return table.sort_values(
        ["removal_gain_frac", "excess_ns", "wait_caused_ns"], ascending=False, ignore_index=True
    )


def _exposed_communication(account: Account) -> float | None:
    """Return the share of transfers that no compute hides, None where they were not seen.

    Without ends they lie inside the spans around them, and a zero would pass any budget.
    """
    events = account.events
    alone = account.trace.run.get("world_size") == 1
    if events.unseen_frac > MAX_UNSEEN or (events.frame.empty and not alone):
        return None
    return sum(account.class_frac(f"exposed_{axis.value}_wire") for axis in Axis)


def _metrics(account: Account) -> dict[str, float | None]:
    """Return the numbers that the gate can bound."""
    attribution: Attribution | None = account.attribution
    slowdown = None
    if attribution is not None and attribution.replayed_ns is not None:
        gain = sum(c.share_frac for c in attribution.causes if c.kind == "straggler_rank")
        slowdown = 1.0 / (1.0 - gain) if gain < 1 else None
    return {
        "mfu": account.utilization.mfu,
        "bubble_frac": account.bubble.measured_frac,
        "exposed_comm_frac": _exposed_communication(account),
        "straggler_slowdown": slowdown,
        "peak_memory_frac": peak_memory_frac(account.memory),
        "step_time_ns": account.windows.step_time_ns,
    }

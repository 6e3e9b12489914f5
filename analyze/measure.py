"""From a capture to the account that findings, causes and paths are read from."""

from __future__ import annotations

from typing import cast

import pandas as pd

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.terms import StepDetail

from .account import Account
from .attribution import attribute, without_blame
from .bubble import pipeline_bubble
from .capture.trace import Trace
from .causes.effects import stage_of_ranks
from .clocks.agreement import clock_offsets
from .communication.events import CommunicationEvents, communication_events
from .communication.unseen import INSIDE_SPANS, unseen_axes, unseen_limit
from .communication.waiting import waits_by_rank
from .deep.steps import listed_steps
from .devices.steps import device_steps
from .ledger.build import Ledger, build_ledger
from .ledger.classes import LEAST_TOLD, UNSPLIT
from .ledger.unseparated import without_guesses, without_unknown_wires
from .memory import memory_by_stage
from .recording import level_limits
from .replay.program import Program, build_program
from .steps.windows import StepWindows, step_windows
from .untold import untold
from .utilization import utilization
from .words import sentence

MOST_LIMITS_IN_ERROR = 3
MOST_LISTED = 8
UNEQUAL = 0.01
"""Share of the step time by which the mean window is shorter when it is worth a sentence."""
_WRONG_CLOCKS = "no replay: the clocks of some ranks are wrong (see the finding clock_skew)"


def measure(trace: Trace) -> Account:
    """Return the ledger, the replay and all that the findings look at.

    Raises:
        TraceFormatError: The capture holds no event that lies in a step.
    """
    windows = _windows(trace)
    events = communication_events(trace, windows)
    unseen = unseen_axes(trace, windows, events)
    ledger = build_ledger(trace, windows, events)
    of_no_operation = _communication_alone(ledger)
    ledger, wire_limits = without_unknown_wires(ledger, events)
    ledger = without_guesses(ledger, trace, windows, unseen)
    ranks = windows.ranks.tolist()
    waits = waits_by_rank(events, ranks)
    corrections = trace.frame("clock_sync")
    errors_ns = dict(zip(corrections["host"].astype(str), corrections["error_ns"], strict=True))
    offsets = clock_offsets(events, trace.clock_of, errors_ns)
    use = utilization(trace, windows.step_time_ns if windows.has_marks else None)
    devices = device_steps(trace, windows, use.peak_flops)
    program, attribution = None, None
    if unseen:
        replay_limits: tuple[str, ...] = (unseen_limit(trace, unseen),)
        if not INSIDE_SPANS.isdisjoint(unseen):
            attribution = without_blame(ranks, replay_limits)
    else:
        program, replay_limits = _program(trace, windows, events, ledger, offsets)
    why_untold = replay_limits or windows.limits
    if program is not None:
        attribution = attribute(trace, program, ledger, events, waits, devices)
        replay_limits, why_untold = attribution.limits, tuple(untold(events))
    seen_limits = (*trace.limits, *_clock_limits(trace), *level_limits(trace))
    limits = (
        *seen_limits,
        *windows.limits,
        *_unequal_windows(windows),
        *events.limits,
        *of_no_operation,
    )
    limits = (*limits, *wire_limits, *replay_limits)
    return Account(
        trace=trace,
        windows=windows,
        events=events,
        ledger=ledger,
        program=program,
        attribution=attribution,
        utilization=use,
        devices=devices,
        bubble=pipeline_bubble(trace, ledger, unseen),
        memory=memory_by_stage(trace),
        waits=waits,
        clock_offsets=offsets,
        stage=stage_of_ranks(trace, ranks),
        unseen=unseen,
        limits=tuple(map(sentence, limits)),
        # Nobody waits for the only rank of a job.
        untold=() if trace.run.get("world_size") == 1 else tuple(map(sentence, why_untold)),
    )


def _unequal_windows(windows: StepWindows) -> tuple[str, ...]:
    """Return whose mean the times of classes are, where the ranks are not in a step equally long."""
    mean_ns, longest_ns = windows.mean_ns, windows.step_time_ns
    if longest_ns - mean_ns < UNEQUAL * longest_ns:
        return ()
    return (
        f"ranks are {mean_ns / 1e6:.2f} ms in a step on average, and the longest {longest_ns / 1e6:.2f} ms: "
        "times and shares of the classes are of that average",
    )


def _clock_limits(trace: Trace) -> tuple[str, ...]:
    """Return what a host capture of a run on GPUs cannot tell."""
    device = str(trace.run.get("device_name") or "")
    if trace.origin != "meshscope" or not device or device.startswith("CPU"):
        return ()
    where = ""
    if trace.row_count("kernel"):
        if trace.kernel_steps is None:
            return ()
        where = "outside the steps that were traced in depth "
    if trace.row_count("span") and trace.frame("span")["device_dur_ns"].notna().any():
        return (
            f"{where}spans were timed on the {device}, communication was not: it has no end unless "
            "the host waited for it",
        )
    return (
        f"{where}times are those of the host: on {device} a span says when work was launched, "
        "not when the device ran it, and communication has no end unless the host waited for it",
    )


def _windows(trace: Trace) -> StepWindows:
    windows = step_windows(trace)
    if not windows.frame.empty and windows.step_time_ns > 0:
        return windows
    what = "no step and no event was recorded"
    if len(trace.frame("step")):
        what = f"no step was finished on every captured rank{_steps_of_ranks(trace)}"
    if not windows.frame.empty:
        what = "the recorded steps have no length"
    remedy = "Record at least one whole step, the same on every rank, then diagnose again"
    if trace.limits:
        remedy = " ".join(["What was read:", *map(sentence, trace.limits[:MOST_LIMITS_IN_ERROR])])
    raise TraceFormatError(what, where=str(trace.path), remedy=remedy)


def _steps_of_ranks(trace: Trace) -> str:
    """Return which ranks have which steps: those that have the same ones together."""
    frame = trace.frame("step")
    holders: dict[tuple[int, ...], list[int]] = {}
    for rank, steps in frame.groupby("rank")["step"]:
        holders.setdefault(tuple(sorted(set(steps.tolist()))), []).append(cast(int, rank))
    parts = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {listed(ranks, most=MOST_LISTED)}: "
        f"{listed_steps(steps)}"
        for steps, ranks in holders.items()
    ]
    more = len(parts) - MOST_LISTED
    return f" ({'; '.join(parts[:MOST_LISTED])}{f'; {more} more' if more > 0 else ''})"


def _communication_alone(ledger: Ledger) -> tuple[str, ...]:
    """Return how much of the step devices communicated without an operation that peers share."""
    share = float(ledger.by_step[UNSPLIT].sum() / ledger.by_step["step_ns"].sum())
    if share < LEAST_TOLD:
        return ()
    return (
        f"communication that no compute hides and that names no operation takes {share:.1%} of the "
        "step: how much of it was waiting, and for whom, is not known",
    )


def _no_operations(trace: Trace, ledger: Ledger) -> str:
    """Return why nobody can be told to make others wait, where no operation is known."""
    if ledger.by_step[UNSPLIT].sum() > 0:
        what = "what the devices communicated names no operation that its peers share"
    elif _names_host_communication(trace):
        what = "communication was recorded on the host only, without what joins it between ranks"
    else:
        what = "no communication was recorded"
    return f"{what}: who makes others wait cannot be known"


def _names_host_communication(trace: Trace) -> bool:
    return any(
        trace.rank_frame("name", rank, ["name"])["name"].str.match(r"(?:gloo|mpi):").any()
        for rank in trace.ranks
    )


def _program(
    trace: Trace,
    windows: StepWindows,
    events: CommunicationEvents,
    ledger: Ledger,
    offsets: pd.Series,
) -> tuple[Program | None, tuple[str, ...]]:
    """Return the replay graph, or why there is none."""
    if not offsets.empty:
        return None, (_WRONG_CLOCKS,)
    if events.frame.empty:
        if windows.detail is not StepDetail.FULL:
            return None, ()
        return None, (_no_operations(trace, ledger),)
    try:
        return build_program(windows, events, ledger), ()
    except ValueError as error:
        return None, (f"no replay: {error} (clocks of different hosts?)",)

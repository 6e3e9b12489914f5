"""From a capture to the account that findings, causes and paths are read from."""

from __future__ import annotations

from typing import cast

import pandas as pd

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed
from meshscope.probe.schema.terms import CaptureLevel, StepDetail, TimeSource

from ..account.bubble import pipeline_bubble
from ..account.devices.steps import device_steps
from ..account.kernels.by_device import use_by_device
from ..account.ledger.build import Ledger, build_ledger
from ..account.ledger.unseparated import split_grouped, without_guesses, without_unknown_wires
from ..account.memory.by_stage import memory_by_stage
from ..account.mfu.utilization import possible_utilization, utilization
from ..account.recording import level_limits
from ..align.clocks.agreement import clock_offsets
from ..align.clocks.stamps import settled
from ..align.communication.events import CommunicationEvents, communication_events
from ..align.communication.unseen import INSIDE_SPANS, unseen_axes, unseen_limit
from ..align.communication.waiting import waits_by_rank
from ..align.steps.windows import StepWindows, step_windows
from ..explain.attribution import attribute, without_blame
from ..explain.blame import with_origins
from ..explain.memory.expected import expected_memory, with_expected
from ..explain.not_recorded import unknown_causes
from ..explain.replay.program import Program, build_program
from ..explain.run_account import Account
from ..explain.unrecorded_joins.infer import Joined, with_hidden_joins
from ..tables.classes import LEAST_SEPARATED, UNSPLIT
from ..tables.results import Utilization
from ..tables.trace import Trace, stage_of_ranks
from ..wording.limits import Limit, limit_text
from ..wording.message import Message, message
from ..wording.step_ranges import listed_steps

MOST_LIMITS_IN_ERROR = 3
MOST_LISTED = 8
UNEQUAL = 0.01
"""Share of the step time by which the mean window is shorter when it is worth a sentence."""
_MOST = 0.5
"""Share of the operations whose ends the device saw, from which on the capture is said to have them."""
MAX_UNEXPLAINED = 0.01
"""Share of the step that may be waiting along axes without records, and no more matters."""


class NoStepsError(TraceFormatError):
    """A capture holds no step to account for: none that all ranks finished, and nothing in place of one."""


def measure(trace: Trace) -> Account:
    """Return the ledger, the replay and all that the findings look at.

    Raises:
        NoStepsError: The capture holds no event that lies in a step.
    """
    trace, resolution_ns = settled(trace)
    windows = _windows(trace)
    events = communication_events(trace, windows)
    unseen = unseen_axes(trace, windows, events)
    offsets = _clock_offsets(trace, events)
    joined = Joined(events, build_ledger(trace, windows, events))
    if INSIDE_SPANS.isdisjoint(unseen) and offsets.empty:
        joined = with_hidden_joins(trace, windows, joined, resolution_ns)
        unseen = _still_unseen(unseen, joined)
    events, ledger = joined.events, joined.ledger
    ledger, of_no_operation = _of_no_operation(trace, windows, ledger)
    ledger, wire_limits = without_unknown_wires(ledger, events)
    ledger = without_guesses(ledger, trace, windows, unseen)
    ranks = windows.ranks.tolist()
    waits = waits_by_rank(events, ranks)
    use = _utilization(trace, windows, ledger)
    devices = device_steps(trace, windows, use.peak_flops)
    program, attribution = None, None
    if unseen:
        replay_limits: tuple[Limit, ...] = (unseen_limit(trace, unseen),)
        if not INSIDE_SPANS.isdisjoint(unseen):
            attribution = without_blame(ranks, replay_limits)
    else:
        seen = (events, ledger, resolution_ns)
        program, replay_limits = _program(trace, windows, seen, offsets)
    why_unknown = replay_limits or windows.limits
    if program is not None:
        attribution = attribute(trace, program, ledger, events, waits, devices)
        replay_limits = attribution.limits
        why_unknown = (*unknown_causes(events), *attribution.refused)
    memory = memory_by_stage(trace)
    expectation = expected_memory(trace, memory)
    limits = (*_seen_limits(trace, windows, events), *of_no_operation, *wire_limits)
    return Account(
        trace=trace,
        windows=windows,
        events=events,
        ledger=ledger,
        program=program,
        attribution=attribution,
        utilization=use,
        devices=devices,
        uses=use_by_device(trace, windows),
        bubble=pipeline_bubble(trace, ledger, unseen),
        memory=with_expected(memory, expectation.found),
        expectation=expectation,
        waits=with_origins(waits, events, program),
        clock_offsets=offsets,
        stage=stage_of_ranks(trace, ranks),
        unseen=unseen,
        limits=(*limits, *joined.limits, *replay_limits, *use.notes),
        # Nobody waits for the only rank of a job.
        unknown_causes=() if trace.run.get("world_size") == 1 else tuple(why_unknown),
    )


def _seen_limits(
    trace: Trace, windows: StepWindows, events: CommunicationEvents
) -> tuple[Limit, ...]:
    """Return what the capture itself lacks."""
    of_capture = (*trace.limits, *_clock_limits(trace), *level_limits(trace))
    return (*of_capture, *windows.limits, *_unequal_windows(windows), *events.limits)


def _still_unseen(unseen: tuple[str, ...], joined: Joined) -> tuple[str, ...]:
    """Return the axes along which ranks may wait unseen.

    Not where the times show their joins, or leave no time for any. On hosts they may wait inside of
    their passes, where no gap shows it.
    """
    if joined.events.frame["host"].any():
        return unseen
    if joined.unexplained_frac <= MAX_UNEXPLAINED:
        return ()
    return tuple(axis for axis in unseen if axis not in joined.axes)


def _clock_offsets(trace: Trace, events: CommunicationEvents) -> pd.Series:
    """Return the ranks whose clocks are wrong, and by how much."""
    corrections = trace.frame("clock_sync")
    errors_ns = dict(zip(corrections["host"].astype(str), corrections["error_ns"], strict=True))
    return clock_offsets(events, trace.clock_of, errors_ns)


def _utilization(trace: Trace, windows: StepWindows, ledger: Ledger) -> Utilization:
    """Return MFU, held against what was measured."""
    use = utilization(trace, windows.step_time_ns if windows.has_marks else None)
    return possible_utilization(use, trace, ledger.by_step)


def _unequal_windows(windows: StepWindows) -> tuple[Limit, ...]:
    """Return whose mean the times of classes are, where the ranks are not in a step equally long."""
    mean_ns, longest_ns = windows.mean_ns, windows.step_time_ns
    if longest_ns - mean_ns < UNEQUAL * longest_ns:
        return ()
    return (message("scope.unequal_windows", mean_ns=mean_ns, longest_ns=longest_ns),)


def _clock_limits(trace: Trace) -> tuple[Limit, ...]:
    """Return what a host capture of a run on GPUs cannot tell."""
    device = str(trace.run.get("device_name") or "")
    if not trace.capabilities.is_timed_on_host or not device or device.startswith("CPU"):
        return ()
    is_traced = bool(trace.row_count("kernel"))
    if is_traced and trace.kernel_steps is None:
        return ()
    found = _timed_on(trace, device)
    return (message("doubt.outside_traces", what=found) if is_traced else found,)


def _timed_on(trace: Trace, device: str) -> Message:
    """Return what was timed on the devices, and what on the hosts."""
    if _is_timed_there(trace):
        return message("scope.waits_on_device", device=device)
    if not trace.row_count("span") or trace.frame("span")["device_dur_ns"].isna().all():
        return message("doubt.host_times", device=device)
    if CaptureLevel.KERNELS.value in set(trace.frame("recording")["level"].astype(str)):
        return message("doubt.no_stream_waited", device=device)
    return message("doubt.host_communication", device=device)


def _is_timed_there(trace: Trace) -> bool:
    """Tell whether most communication has an end that the device saw."""
    sources = pd.concat([trace.frame(name)["source"].astype(str) for name in ("collective", "p2p")])
    return bool(len(sources)) and bool((sources == TimeSource.DEVICE_BLOCKING).mean() > _MOST)


def _windows(trace: Trace) -> StepWindows:
    if not trace.ranks and trace.capabilities.begins_with_process:
        raise NoStepsError(
            message("refused.no_rank_at_all"),
            where=str(trace.path),
            remedy=message("advice.read_launcher"),
        )
    windows = step_windows(trace)
    if not windows.frame.empty and windows.step_time_ns > 0:
        return windows
    what = message("refused.nothing_recorded")
    if len(trace.frame("step")):
        what = message("refused.no_step_of_every_rank", of_ranks=_steps_of_ranks(trace))
    if not windows.frame.empty:
        what = message("refused.steps_without_length")
    remedy = message("advice.whole_step_of_all")
    if trace.limits:
        read = " ".join(map(limit_text, trace.limits[:MOST_LIMITS_IN_ERROR]))
        remedy = message("advice.what_was_read", limits=read)
    raise NoStepsError(what, where=str(trace.path), remedy=remedy)


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


def _of_no_operation(
    trace: Trace, windows: StepWindows, ledger: Ledger
) -> tuple[Ledger, tuple[Limit, ...]]:
    """Return the ledger with grouped transfers split, and what is said of communication without operations."""
    ledger, of_groups = split_grouped(trace, windows, ledger)
    return ledger, (*of_groups, *_communication_alone(ledger))


def _communication_alone(ledger: Ledger) -> tuple[Limit, ...]:
    """Return how much of the step devices communicated without an operation that peers share."""
    share = float(ledger.by_step[UNSPLIT].sum() / ledger.by_step["step_ns"].sum())
    if share < LEAST_SEPARATED:
        return ()
    return (message("unknown.communication_of_no_operation", share=share),)


def _no_operations(trace: Trace, ledger: Ledger) -> Limit:
    """Return why nobody can be said to make others wait, where no operation is known."""
    if ledger.by_step[UNSPLIT].sum() > 0:
        return message("unknown.operations_unnamed")
    if _names_host_communication(trace):
        return message("unknown.operations_on_host_only")
    return message("unknown.no_operations")


def _names_host_communication(trace: Trace) -> bool:
    return any(
        trace.rank_frame("name", rank, ["name"])["name"].str.match(r"(?:gloo|mpi):").any()
        for rank in trace.ranks
    )


def _program(
    trace: Trace,
    windows: StepWindows,
    seen: tuple[CommunicationEvents, Ledger, float],
    offsets: pd.Series,
) -> tuple[Program | None, tuple[Limit, ...]]:
    """Return the replay graph, or why there is none.

    Args:
        trace: The capture.
        windows: The analysed steps.
        seen: Their communication and ledger, and how far apart stamps of one instant may lie.
        offsets: By how much clocks are wrong.
    """
    events, ledger, _ = seen
    if not offsets.empty:
        return None, (message("unknown.replay_of_wrong_clocks"),)
    if events.frame.empty:
        if windows.detail is not StepDetail.FULL:
            return None, ()
        return None, (_no_operations(trace, ledger),)
    try:
        return build_program(windows, *seen), ()
    except ValueError as error:
        return None, (message("unknown.replay_disordered", reason=str(error)),)

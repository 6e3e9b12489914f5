"""The numbers of a run that a budget can bound, and why one of them is not known."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from meshscope.probe.schema.terms import Axis

from ..account.memory.by_stage import peak_memory_frac
from ..tables.classes import LEAST_SEPARATED, UNSPLIT
from ..wording.message import Text, message
from .not_recorded import MAX_UNSEEN
from .run_account import Account

NO_STEPS = message("why.no_steps")
NO_MARKS = message("why.no_marks")
_OF_STEPS = ("mfu", "bubble_frac", "exposed_comm_frac", "straggler_slowdown", "step_time_ns")


class Metrics(NamedTuple):
    """Numbers by name, None where one is not known, and the reasons of those."""

    values: dict[str, float | None]
    unknown_because: dict[str, Text]


_Known = tuple[float | None, Text]
"""A number, or None and the reason."""


def metrics_of(account: Account) -> Metrics:
    """Return the numbers of a measured run."""
    use, bubble = account.utilization, account.bubble
    return _metrics(
        {
            "mfu": (use.mfu, use.unknown_because),
            "bubble_frac": (bubble.measured_frac, bubble.unknown_because),
            "exposed_comm_frac": _exposed_communication(account),
            "straggler_slowdown": _straggler_slowdown(account),
            "peak_memory_frac": _peak_memory(account.memory),
            "step_time_ns": _step_time(account),
        }
    )


def metrics_without_steps(memory: pd.DataFrame) -> Metrics:
    """Return the numbers of a capture that has no steps: that of memory can be known."""
    unknown: dict[str, _Known] = dict.fromkeys(_OF_STEPS, (None, NO_STEPS))
    return _metrics(unknown | {"peak_memory_frac": _peak_memory(memory)})


def _metrics(known: dict[str, _Known]) -> Metrics:
    reasons = {name: reason for name, (value, reason) in known.items() if value is None}
    return Metrics({name: value for name, (value, _) in known.items()}, reasons)


def _step_time(account: Account) -> _Known:
    windows = account.windows
    return (windows.step_time_ns, "") if windows.has_marks else (None, NO_MARKS)


def _exposed_communication(account: Account) -> _Known:
    """Return the share of transfers that no compute hides, None where they were not seen.

    Without ends they lie inside the spans around them, without peers in one class with the
    waiting, and a zero would pass any budget.
    """
    events = account.events
    if account.class_frac(UNSPLIT) >= LEAST_SEPARATED:
        return None, message("why.waits_not_separated")
    if events.unseen_frac > MAX_UNSEEN:
        return None, message("why.ends_unseen")
    if account.unseen:
        return None, message("why.unseen_axes", axes=list(account.unseen))
    if events.frame.empty and not _is_single_rank(account):
        return None, message("why.no_communication")
    return sum(account.class_frac(f"exposed_{axis.value}_wire") for axis in Axis), ""


def _straggler_slowdown(account: Account) -> _Known:
    """Return the step time over that of the replay in which no slow rank is left.

    All are repaired together, as ``whatif --fix stragglers`` does: the shares of the causes
    are what each of them is charged with, not what the step becomes without them.
    """
    attribution = account.attribution
    if attribution is None or attribution.replayed_ns is None:
        if _is_single_rank(account):
            return None, message("why.one_rank")
        reason = account.unknown_causes[0] if account.unknown_causes else message("why.no_replay")
        return None, reason
    without = attribution.without_slow_ns
    if without is None or without <= 0:
        return None, message("why.nothing_left")
    return attribution.replayed_ns / without, ""


def _peak_memory(by_stage: pd.DataFrame) -> _Known:
    if by_stage.empty:
        return None, message("why.no_memory")
    if by_stage["capacity_bytes"].isna().all():
        return None, message("why.no_capacity")
    return peak_memory_frac(by_stage), message("why.no_peak_beside_capacity")


def _is_single_rank(account: Account) -> bool:
    return account.trace.run.get("world_size") == 1

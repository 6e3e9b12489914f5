"""Hosts that stall their devices: data, garbage collection, checkpoints, synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind, SpanKind

from ...explain.causes import HOST_CAUSES, UNRECORDED_DELAY, stalled_rank
from ...explain.jitter_cost import jitter_cost
from ...explain.run_account import Account
from ...tables.classes import UNATTRIBUTED
from ...tables.results import Finding, Where
from ...wording.message import Message, message
from .bad_steps import BadSteps, bad_steps, per_step
from .grading import MIN_COST, severity

MIN_STALL = 0.02
"""Share of the step from which host time is worth a finding."""
MIN_IN_STEP = 0.1
"""Least share of the cost of a stall that must return for all ranks to have it in the same steps."""
MIN_SPREAD = 0.005
"""Ranks that differ by less than this share are alike: no report shows it."""
OTHERS_WAIT = 1.5
"""From this ratio of cost to time spent, averaged over ranks, others wait for it."""

_WORK = (SpanKind.FORWARD.value, SpanKind.BACKWARD.value, SpanKind.OPTIMIZER.value)
"""Spans of a job that trains."""


class _Stall(NamedTuple):
    """What is said of the time of one ledger class."""

    kind: FindingKind
    what: Message
    remedy: Message
    remedy_of_one: Callable[[int], Message]
    """The same where one rank has it."""
    remedy_in_step: Message | None = None
    """The same where it helps that all ranks have it in the same steps."""


_STALLS = {
    "data_load": _Stall(
        FindingKind.DATA_STALL,
        message("data_stall.what"),
        message("data_stall.remedy"),
        lambda rank: message("data_stall.remedy_of_one", rank=rank),
    ),
    "gc": _Stall(
        FindingKind.GC_PAUSE,
        message("gc_pause.what"),
        message("gc_pause.remedy"),
        lambda rank: message("gc_pause.remedy_of_one", rank=rank),
        message("gc_pause.remedy_in_step"),
    ),
    "checkpoint": _Stall(
        FindingKind.CHECKPOINT_STALL,
        message("checkpoint_stall.what"),
        message("checkpoint_stall.remedy"),
        lambda rank: message("checkpoint_stall.remedy_of_one", rank=rank),
    ),
    "host_blocked": _Stall(
        FindingKind.HOST_STALL,
        message("host_stall.what"),
        message("host_stall.remedy"),
        lambda rank: message("host_stall.remedy_of_one", rank=rank),
    ),
    "offload": _Stall(
        FindingKind.HOST_STALL,
        message("host_stall.what_offload"),
        message("host_stall.remedy_of_offload"),
        lambda rank: message("host_stall.remedy_of_one_offload", rank=rank),
    ),
    "other": _Stall(
        FindingKind.HOST_STALL,
        message("host_stall.what_other"),
        message("host_stall.remedy_of_other"),
        lambda rank: message("host_stall.remedy_of_one_other", rank=rank),
    ),
}


def host_stalls(account: Account) -> Iterator[Finding]:
    """Host time that takes 2 % of the step, or whose repair returns 1 % of it."""
    if only_started(account):
        return
    for classes in HOST_CAUSES.values():
        if not any(map(account.class_frac, classes)):
            continue
        times = _times(account, classes)
        spent = float(times["ns"].sum() / times["step_ns"].sum())
        most = max(classes, key=account.class_frac)
        stall = _STALLS[most]
        cause = next(iter(account.causes(stall.kind.value)), None)
        gain = None if cause is None else cause.removal_gain_frac
        cost = max(spent, gain or 0.0)
        if spent < MIN_STALL and (gain or 0.0) < MIN_COST:
            continue
        place = cause.where if cause is not None else _place(times)
        rank = place.get("rank")
        when = bad_steps(account.windows, _by_step(times, rank), cost)
        share = spent
        if rank is not None:
            share = float(_by_step(times, rank).mean()) / account.windows.step_time_ns
        remedy = stall.remedy if rank is None else stall.remedy_of_one(rank)
        evidence = [*_evidence(times, most, rank, when, per_step(account.windows))]
        if rank is not None and cause is not None and cost > OTHERS_WAIT * spent:
            evidence.insert(0, message("stall.others_wait"))
        in_step = stall.remedy_in_step if rank is None else None
        returned = 0.0 if in_step is None else _in_step(times)
        if in_step is not None and gain is not None and returned >= MIN_IN_STEP:
            evidence.append(message("stall.gain", gain=gain))
            evidence.append(message("stall.gain_same_steps", gain=returned * gain))
            remedy, gain = in_step, returned * gain
        yield Finding(
            kind=stall.kind,
            severity=severity(cost),
            where={**place, **when.where},
            steps=when.steps,
            claim=_claim(stall, rank, share, when),
            cost_frac=cost,
            removal_gain_frac=gain,
            confidence=0.8,
            evidence=tuple(evidence),
            remedy=remedy,
        )


def only_started(account: Account) -> bool:
    """Return whether a run of ours ended in its start: imports collect garbage, and that delays no step."""
    trace = account.trace
    if account.windows.has_marks or not trace.row_count("recording"):
        return False
    works = trace.frame("span")["kind"].isin(_WORK).any()
    return not works and not trace.row_count("collective") and not trace.row_count("p2p")


def _claim(stall: _Stall, rank: int | None, share: float, when: BadSteps) -> Message:
    """Say who spends which share of the step on what, and how much of it when."""
    of_step = {"share": share, "what": stall.what}
    if rank is None:
        if when.part is None:
            return message("stall.claim", **of_step)
        return message("stall.claim_when", part=when.part, **of_step)
    if when.part is None:
        return message("stall.claim_of_one", rank=rank, **of_step)
    return message("stall.claim_of_one_when", rank=rank, part=when.part, **of_step)


def _times(account: Account, classes: tuple[str, ...]) -> pd.DataFrame:
    """Return the time of the classes that one repair takes away: rank, step, step_ns and ns."""
    by_step = account.ledger.by_step
    return by_step[["rank", "step", "step_ns"]].assign(ns=by_step[list(classes)].sum(axis=1))


def _by_step(times: pd.DataFrame, rank: int | None) -> pd.Series:
    """Return the time by step, ns: of a rank, or the mean over all."""
    rows = times if rank is None else times[times["rank"] == rank]
    means: pd.Series = rows.groupby("step")["ns"].mean()
    return means


def _in_step(times: pd.DataFrame) -> float:
    """Return which share of the cost of a stall returns if all ranks have it in the same steps."""
    cells = times.pivot(index="step", columns="rank", values="ns").fillna(0.0)
    return jitter_cost(cells.to_numpy(np.float64)).same_steps_return


def unrecorded_delays(account: Account) -> Iterator[Finding]:
    """A stage that loses far more than the others in what nothing was recorded of."""
    for cause in account.causes(UNRECORDED_DELAY):
        cost = cause.worth_frac
        if cost < MIN_COST:
            continue
        stage = cause.where["stage"]
        own = account.class_by_stage(UNATTRIBUTED)
        others_ns = float(own.drop(stage).median())
        who = message("stage.subject", stage=stage)
        if "rank" in cause.where:
            who = message("unrecorded_delay.rank", stage=stage, rank=cause.where["rank"])
        yield Finding(
            kind=FindingKind.HOST_STALL,
            severity=severity(cost),
            where=cause.where,
            claim=message("unrecorded_delay.claim", who=who),
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=0.7,
            evidence=(
                message(
                    "unrecorded_delay.time",
                    each=per_step(account.windows),
                    own_ns=float(own[stage]),
                    others_ns=others_ns,
                ),
                message("unrecorded_delay.not_the_schedule"),
            ),
            remedy=message("unrecorded_delay.remedy", stage=stage),
        )


def _place(times: pd.DataFrame) -> Where:
    """Return the rank that stalls, where there is no replay to ask: of a few, or none."""
    cells = times.pivot(index="rank", columns="step", values="ns")
    return stalled_rank(cells.index.to_numpy(np.int64), cells.fillna(0.0).to_numpy(np.float64))


def _evidence(
    times: pd.DataFrame, name: str, rank: int | None, when: BadSteps, each: Message
) -> Iterator[Message]:
    """Say on which ranks, and in which steps, how much there is; by the name of its largest class."""
    by_rank = times.groupby("rank")["ns"].mean()
    least_ns, most_ns, mean_ns = map(float, (by_rank.min(), by_rank.max(), by_rank.mean()))
    time = {"name": name, "mean_ns": mean_ns, "each": each}
    if rank is not None:
        yield message("stall.time_of_one", own_ns=float(by_rank[rank]), rank=rank, **time)
    elif most_ns - least_ns < MIN_SPREAD * most_ns:
        yield message("stall.time_alike", **time)
    else:
        yield message("stall.time", least_ns=least_ns, most_ns=most_ns, **time)
    if not when.are_all:
        by_step = _by_step(times, rank)
        is_bad = by_step.index.isin(when.steps)
        bad_ns, others_ns = float(by_step[is_bad].mean()), float(by_step[~is_bad].mean())
        both = {"bad_ns": bad_ns, "when": when.message, "others_ns": others_ns}
        if rank is None:
            yield message("stall.in_steps", **both)
        else:
            yield message("stall.in_steps_of_one", rank=rank, **both)

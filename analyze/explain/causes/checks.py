"""What must hold before causes are believed; what does not hold is said, and no cause is.

A replay with nothing repaired gives the recorded times whatever is in it: waiting that was recorded as
the rank's own work stays frozen, and repairs return too little. So the waiting of the replay is held
against that of the account, the work of every rank too, and a repair may not lose what it cannot lose.
Late launches beside a transfer are work by the replay and communication by the account; they are measured
(``causes.launches``) and taken out first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ...account.ledger.build import Ledger
from ...tables.classes import class_code
from ...tables.results import Cause, WaitAccount
from ...wording.message import Message, Text, message
from ..replay.program import Program
from .launches import MOVED, LateLaunches
from .time_inside import time_inside
from .workers import OTHERS

MAX_WAIT_APART = 0.02
"""Share of the step by which the waiting of account and replay may differ."""
MAX_WORK_APART = 0.01
"""The same of the work of any rank."""
MAX_LOSS = 0.02
"""Share of the step that a repair may lose, where it can lose nothing, for errors."""
_NEVER_LOSE = ("jitter", "straggler_rank", OTHERS)
"""Causes whose repair takes time away."""
_MAY_MOVE = "sequence_imbalance"
"""Equal microbatches may give a slow rank more of them, and lose; not where all else is repaired. Equal
stages move load in any case."""


def parted(
    program: Program, ledger: Ledger, waiting: WaitAccount, late: LateLaunches | None = None
) -> Iterator[Message]:
    """Yield where the replay and the account part by more than may be.

    Args:
        program: The replay graph.
        ledger: The ledger of the same steps.
        waiting: The waiting by both.
        late: What they part by because hosts launched late; None where no devices were recorded.
    """
    step_ns, steps = program.windows.step_time_ns, len(program.windows.steps)
    late_ns = late_waiting(late, steps)
    if abs(waiting.model_error_ns - late_ns) > MAX_WAIT_APART * step_ns:
        replayed_ns = waiting.measured_ns - waiting.model_error_ns
        launches = message("check.launches_aside", share=late_ns / step_ns) if late_ns else ""
        yield message(
            "check.waits_apart",
            account=waiting.measured_ns / step_ns,
            replay=replayed_ns / step_ns,
            launches=launches,
            where=_most_apart(program, ledger),
        )
    work = _work_apart(program, ledger)
    if late is not None:
        work = work.sub(late.moved_ns, fill_value=0.0)
    work = work / (step_ns * steps)
    rank = int(work.index[int(work.argmax())])
    if work[rank] > MAX_WORK_APART:
        yield message(
            "check.work_apart",
            share=float(work[rank]),
            rank=rank,
            where=_most_apart(program, ledger, rank),
        )


def late_waiting(late: LateLaunches | None, steps: int) -> float:
    """Return the waiting of the account that is late launches, ns per step and rank."""
    return 0.0 if late is None else float(late.waiting_ns.mean()) / steps


def losing(causes: tuple[Cause, ...]) -> Iterator[Message]:
    """Yield which repairs lose what they cannot lose."""
    for cause in causes:
        never = cause.kind in _NEVER_LOSE or (cause.kind == _MAY_MOVE and cause.share_frac < 0)
        if never and cause.removal_gain_frac < -MAX_LOSS:
            loss = -cause.removal_gain_frac
            if (rank := cause.where.get("rank")) is not None:
                yield message("check.repair_of_rank_loses", kind=cause.kind, rank=rank, loss=loss)
            else:
                yield message("check.repair_loses", kind=cause.kind, loss=loss)


def _work_apart(program: Program, ledger: Ledger) -> pd.Series:
    """Return by rank how much longer it works by the program than by the account, all steps, ns."""
    rank, work_ns = (program.marks[name].to_numpy() for name in ("rank", "work_ns"))
    # Marks are in program order: those of a rank are neighbours.
    first = np.flatnonzero(np.append(True, rank[1:] != rank[:-1])[: len(rank)])
    sums = np.add.reduceat(work_ns, first) if len(first) else work_ns
    work = pd.Series(sums.astype(np.float64), pd.Index(rank[first], name="rank"))
    by_step = ledger.by_step
    busy = by_step["step_ns"] - by_step[list(MOVED)].sum(axis=1)
    return work - busy.groupby(by_step["rank"]).sum()


def _most_apart(program: Program, ledger: Ledger, rank: int | None = None) -> Text:
    """Return before which operation most communication of the account is work of the replay."""
    edge = program.work_edges
    codes = [class_code(name) for name in MOVED]
    inside = time_inside(program.marks, edge, ledger, codes)
    rows = program.marks.iloc[edge][["rank", "event"]].assign(ns=inside)
    if rank is not None:
        rows = rows[rows["rank"] == rank]
    frame = program.events
    named = frame["axis"].astype(str) + " " + frame["kind"].astype(str)
    what = pd.Series(np.append(named.to_numpy(object), "the end of the step")[rows["event"]])
    sums = rows["ns"].groupby([rows["rank"].to_numpy(), what.to_numpy()]).sum()
    if not len(sums) or sums.max() <= 0:
        return ""
    at_rank, before = sums.index.to_flat_index()[int(sums.argmax())]
    return message(
        "check.most_apart",
        rank=int(at_rank),
        before=str(before),
        time_ns=float(sums.max() / len(program.windows.steps)),
    )

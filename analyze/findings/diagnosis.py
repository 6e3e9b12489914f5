"""The whole account of one run, from tables to findings."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..account.bubble import microbatch_range, microbatches_of, schedule_of
from ..account.recording import probe_cost
from ..account.refinement import SLOWED, Refinement, refine_compute, refine_ledger
from ..align.attempts import attempts_of
from ..align.communication.waiting import traffic_by_group
from ..explain.causes import SLOW_RANKS, ranks_of
from ..explain.metrics import metrics_of
from ..explain.not_recorded import MAX_UNSEEN
from ..explain.run_account import Account
from ..tables.classes import CLASSES, REFINED
from ..tables.results import Bar, Cause, Diagnosis
from ..tables.trace import Trace, places_of
from ..wording.limits import ordered
from .measure import NoStepsError, measure
from .ordered import find
from .rules.slow_steps import with_other_steps
from .without_steps import diagnose_without_steps, has_no_steps

_BARS = (*SLOWED, *REFINED, *(name for name in CLASSES if name not in SLOWED))
"""The classes of the refined ledger in the order of the waterfall."""


def diagnose(trace: Trace) -> Diagnosis:
    """Return where the time of a run went, why, and what to do.

    A dump of a flight recorder has no steps: only who did not arrive is known. Of a job that
    broke off before all had finished a step, how it ended; of a file about memory alone, only that.

    Raises:
        NoStepsError: The capture of a job that did not break off holds no event that lies in a step.
    """
    found = account_or_end(trace)
    return diagnosis_of(found) if isinstance(found, Account) else found


def account_or_end(trace: Trace) -> Account | Diagnosis:
    """Return what a diagnosis is read from; where there are no steps, what is known without them.

    Raises:
        NoStepsError: As ``diagnose``.
    """
    if has_no_steps(trace):
        return diagnose_without_steps(trace)
    try:
        return measure(trace)
    except NoStepsError as error:
        if not trace.row_count("progress"):
            raise
        return diagnose_without_steps(trace, because=error.what)


def diagnosis_of(account: Account) -> Diagnosis:
    """Return the diagnosis of a run that was measured already."""
    trace, account = account.trace, with_other_steps(account)
    findings = find(account)
    ledger = refine_ledger(account.ledger.by_step, account.devices)
    refinement = refine_compute(
        trace, account.windows, ledger, account.utilization, account.devices
    )
    attribution = account.attribution
    measured = account.windows.step_time_ns
    metrics = metrics_of(account)
    return Diagnosis(
        run=_run_header(account),
        step_time_ns=measured,
        utilization=account.utilization,
        waterfall=waterfall(ledger, refinement, account.windows.mean_ns),
        causes=attribution.causes if attribution else (),
        findings=findings,
        limits=ordered((*account.limits, *refinement.limits)),
        ledger=ledger,
        stragglers=_stragglers(account),
        bubble=account.bubble,
        devices=account.uses,
        memory=account.memory,
        expectation=account.expectation.kept,
        groups=traffic_by_group(account.events, trace.frame("group"), len(account.windows.steps)),
        waiting=attribution.waiting if attribution is not None else None,
        model_error_frac=(
            (measured - attribution.replayed_ns) / measured
            if attribution is not None and attribution.replayed_ns is not None
            else None
        ),
        unknown_causes=account.unknown_causes,
        metrics=metrics.values,
        unknown_because=metrics.unknown_because,
    )


def waterfall(ledger: pd.DataFrame, refinement: Refinement, mean_ns: float) -> tuple[Bar, ...]:
    """Return the classes of the refined ledger as shares of the windows of ranks, which sum to 1.

    Where MFU is known, the parts of compute take the place of its classes.
    """
    total = float(ledger["step_ns"].sum())
    shares = {name: float(ledger[name].sum()) / total for name in _BARS}
    bars: list[tuple[str, float]] = []
    if refinement.frac:
        bars = list(refinement.frac.items())
        shares = {name: frac for name, frac in shares.items() if name not in (*SLOWED, *REFINED)}
    shown = {"unattributed", *(name for name in REFINED if ledger[name].notna().any())}
    bars += [(name, frac) for name, frac in shares.items() if frac > 0 or name in shown]
    return tuple(Bar(name=name, frac=frac, dur_ns=frac * mean_ns) for name, frac in bars)


def _run_header(account: Account) -> dict[str, object]:
    trace, run = account.trace, dict(account.trace.run)
    layout = trace.layout
    for axis in ("tp", "pp", "dp", "cp", "ep", "vpp", "order"):
        run[axis] = getattr(layout, axis) if layout is not None else run.get(axis)
    run["schedule"] = schedule_of(trace)
    run["microbatches"] = microbatches_of(trace)
    if run["microbatches"] is None and (unlike := microbatch_range(trace)) is not None:
        run["microbatch_range"] = list(unlike)
    run["model"] = json.loads(text) if isinstance(text := run.get("model"), str) else None
    run["origin"] = trace.origin
    run["captured_ranks"] = len(trace.ranks)
    run["steps"] = len(account.windows.steps)
    first, last = int(account.windows.steps[0]), int(account.windows.steps[-1])
    known = (first, last) if account.windows.has_marks else (None, None)
    run["first_step"], run["last_step"] = known
    run["all_steps"], run["all_step_time_ns"] = account.windows.all_steps, account.windows.of_all_ns
    run["attempts"] = attempts_of(trace)
    run |= probe_cost(trace)
    return run


def _stragglers(account: Account) -> pd.DataFrame:
    table = places_of(account.trace, account.windows.ranks.tolist())
    attribution = account.attribution
    if attribution is None or account.events.unseen_frac > MAX_UNSEEN:
        # Where ends are not seen, waiting is in the work, and comparing that tells nothing.
        table = table.assign(slowdown=np.nan, excess_ns=np.nan, removal_gain_frac=np.nan)
    else:
        table = table.merge(_excess(attribution.ranks), on="rank", how="left")
        table["removal_gain_frac"] = table["rank"].map(_largest_gains(attribution.causes))
    table = table.merge(account.waits, on="rank", how="left")
    return table.sort_values(
        ["removal_gain_frac", "excess_ns", "wait_caused_ns"], ascending=False, ignore_index=True
    )


def _largest_gains(causes: Iterable[Cause]) -> dict[int, float]:
    """Return the largest removal gain of a cause that makes a rank slow, by rank."""
    gains: dict[int, float] = {}
    for cause in causes:
        if cause.kind in SLOW_RANKS:
            for rank in ranks_of(cause):
                gains[rank] = max(cause.removal_gain_frac, gains.get(rank, 0.0))
    return gains


def _excess(ranks: pd.DataFrame) -> pd.DataFrame:
    """Return how much longer each rank works than its peers, with what its clock costs."""
    return pd.DataFrame(
        {
            "rank": ranks["rank"],
            "slowdown": ranks["slowdown"] + ranks["clock_ns"] / ranks["peer_ns"],
            "excess_ns": ranks["excess_ns"] + ranks["clock_ns"],
        }
    )

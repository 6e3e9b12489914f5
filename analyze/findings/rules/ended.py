"""How a job ended of which no rank is known to have been the reason: by what, and who was first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from signal import SIGINT, SIGKILL, SIGTERM
from typing import NamedTuple

import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.hangs.rank_ends import ends_of_ranks
from ...account.hangs.stacks import (
    MESSAGES,
    calls_by_rank,
    raised_ranks,
    stack_messages,
    stack_places,
)
from ...account.hangs.standstill import LEAST_SILENCE_NS
from ...account.hangs.unrecorded_ranks import unknown_at_the_end
from ...align.steps.last_records import last_progress_ns
from ...explain.run_account import Account
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from ...wording.words import exit_words
from .hang import hang_findings
from .mismatch import MISMATCHES
from .standstill_words import SHOWN, unlike_messages, unlike_passes, where_of, with_attempt

_INTERRUPTED = frozenset({KeyboardInterrupt.__name__, SIGINT.name, f"exit code {128 + SIGINT}"})
_TERMINATED = frozenset({SIGTERM.name, f"exit code {128 + SIGTERM}"})
"""A handler of the program may end it by ``sys.exit`` with the code that shells give."""
_UNKNOWN = "unknown"
_IN_ORDER = "in order"
_ENDED_FIRST = "ended_first"
"""The cause where ranks failed after others had ended in order."""


class _Kind(NamedTuple):
    """What is said of a way to end."""

    kind: FindingKind
    severity: Severity
    confidence: float
    claim: Message
    remedy: Message
    cause: str
    ranks: tuple[int, ...] = ()
    """Who is named."""


def ends(account: Account) -> Iterator[Finding]:
    """How the job ended, where it broke off: who did not arrive, who died, or what ended them all."""
    trace, windows = account.trace, account.windows
    if trace.frame("progress").empty:
        return
    usual_ns = _usual_step_ns(trace)
    # The account may be of few steps, as where ranks exchange nothing: then of the first one.
    known = [windows.step_time_ns, *([] if usual_ns is None else [usual_ns])]
    yield from how_it_ended(trace, min(known) if windows.has_marks else None)


def ends_of(trace: Trace) -> tuple[Finding, ...]:
    """Return how the job of a capture ended, of all its steps; nothing where it did not break off."""
    if trace.frame("progress").empty:
        return ()
    return tuple(found for found in how_it_ended(trace, _usual_step_ns(trace)) if found.is_end)


def _usual_step_ns(trace: Trace) -> float | None:
    lengths = trace.frame("step")["dur_ns"]
    return float(lengths.median()) if len(lengths) else None


def how_it_ended(trace: Trace, step_time_ns: float | None) -> Iterator[Finding]:
    """Yield how a job ended that did not end in order, what is surest first; nothing of others.

    Args:
        trace: The capture.
        step_time_ns: Usual length of a step, None where it is not known.
    """
    found = tuple(hang_findings(trace, step_time_ns))
    if not any(finding.is_end for finding in found):
        found = (*_ended(trace), *found)
    noted = set(trace.frame("noted_collective")["rank"])
    unknown = [rank for rank in unknown_at_the_end(trace) if rank not in noted]
    unseen = [message("crash.unseen_operations", ranks=unknown)] if unknown else []
    for own in found:
        is_open = own.is_end and own.cause not in MISMATCHES
        yield replace(own, evidence=(*own.evidence, *unseen)) if is_open else own


def _ended(trace: Trace) -> Iterator[Finding]:
    """Yield how all processes ended, as far as their ends were seen and did not go on."""
    if not trace.capabilities.records_whole_life or trace.frame("progress").empty:
        return
    times = ends_of_ranks(trace)
    if times["ended_ns"].isna().any():
        return
    ended = times["ended_ns"].astype("int64").sort_values(kind="stable")
    ways = way_words(times)
    first = int(ended.index[0])
    said = _failed_alike(trace, ways) or _kind_of(ways.reindex(ended.index), calls_by_rank(trace))
    if said is None:
        return
    between_ns = int(ended.iloc[-1]) - int(ended.iloc[0])
    silence = tuple(_silence_before(trace, int(ended.iloc[0])))
    yield Finding(
        kind=said.kind,
        severity=said.severity,
        where=where_of(said.ranks, trace) if said.ranks else {},
        claim=with_attempt(said.claim, trace),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=said.confidence,
        evidence=(
            *(_first_unlike(trace) if said.cause == _ENDED_FIRST else ()),
            message("crash.all_ended", between_ns=between_ns, rank=first),
            *silence,
            *(_way(str(way), _ranks(own)) for way, own in ways.groupby(ways)),
            *(stack_messages(trace, trace.ranks, most=SHOWN) if said.ranks or silence else ()),
        ),
        remedy=said.remedy,
        cause=said.cause,
    )


def _first_unlike(trace: Trace) -> Iterator[Message]:
    """Yield in which step ranks first did other things than most, or than their peers: what failed later began there."""
    yield from unlike_passes(trace)
    yield from unlike_messages(trace)


def _silence_before(trace: Trace, ended_ns: int) -> Iterator[Message]:
    """Say that nothing was recorded long before the first end: who ended first may have given up waiting."""
    last_ns = int(last_progress_ns(trace).max())
    if last_ns and ended_ns - last_ns >= LEAST_SILENCE_NS:
        yield message("crash.silent_before", silent_ns=ended_ns - last_ns)


def _way(way: str, ranks: list[int]) -> Message:
    """Return how some ranks ended."""
    if way == _UNKNOWN:
        return message("crash.ended_unknown", ranks=ranks)
    if way == _IN_ORDER:
        return message("crash.ended_in_order", ranks=ranks)
    return message("crash.ended_by", ranks=ranks, how=way)


def _ranks(ways: pd.Series[str]) -> list[int]:
    return sorted(map(int, ways.index))


def way_words(times: pd.DataFrame) -> pd.Series[str]:
    """Return how each rank ended: by an exception, a signal, or an exit code."""
    status = times["wait_status"].astype("Int64")
    # Not by na_action: pandas before 2.3 hands the NA of a nullable array to the function.
    words = {own: exit_words(int(own)) if own else _IN_ORDER for own in status.dropna().unique()}
    by_status = status.astype(object).map(words)
    otherwise = times["closed"].map({True: _IN_ORDER, False: _UNKNOWN})
    # Of ``sys.exit`` the code says more.
    is_exit = times["ended_by"].eq(SystemExit.__name__) & by_status.notna()
    ways: pd.Series[str] = times["ended_by"].astype(object).mask(is_exit)
    ways = ways.where(ways.notna(), by_status.astype(object))
    return ways.where(ways.notna(), otherwise).astype(str)


def _kind_of(ways: pd.Series[str], calls: Mapping[int, str]) -> _Kind | None:
    """Return what is said of the way in which ranks ended; None where too little is known.

    Args:
        ways: How each rank ended, the first to end first.
        calls: The call of communication in which ranks were.
    """
    first = int(ways.index[0])
    if ways.isin(_INTERRUPTED).any():
        return _Kind(
            *(FindingKind.JOB_ENDED, Severity.INFO, 0.95),
            message("job_ended.interrupted", ranks=_ranks(ways[ways.isin(_INTERRUPTED)])),
            message("job_ended.interrupted_remedy"),
            "interrupted",
        )
    if ways[first] in _TERMINATED:
        return _Kind(
            *(FindingKind.JOB_ENDED, Severity.INFO, 0.8),
            message("job_ended.terminated", ranks=_ranks(ways)),
            message("job_ended.terminated_remedy"),
            "terminated",
        )
    if (ways == SIGKILL.name).all():
        return _Kind(
            *(FindingKind.JOB_ENDED, Severity.WARNING, 0.9),
            message("job_ended.killed", ranks=_ranks(ways)),
            message("job_ended.killed_remedy"),
            "killed",
        )
    failed = _ranks(ways[~ways.isin({_UNKNOWN, _IN_ORDER, *_TERMINATED})])
    if ways[first] == _IN_ORDER and failed:
        return _failed_after(ways, failed, calls)
    if ways[first] in (_UNKNOWN, _IN_ORDER):
        return None
    return _Kind(
        *(FindingKind.CRASH, Severity.CRITICAL, 0.6),
        message("crash.first_by", ranks=[first], how=[ways[first]]),
        message("crash.remedy_unsure", rank=first),
        "error",
        (first,),
    )


def _failed_alike(trace: Trace, ways: pd.Series[str]) -> _Kind | None:
    """Return that all ranks failed by one error at one place, as where they have checked that they agree.

    None of them is then the victim of another one, and the first to end tells nothing.
    """
    places = stack_places(trace)
    alike = ways.nunique() == 1 and len(ways) > 1 and set(places["rank"]) == set(ways.index)
    if not alike or raised_ranks(trace) != set(ways.index) or places["function"].nunique() > 1:
        return None
    what = {"function": places["function"].iloc[0], "how": str(ways.iloc[0])}
    return _Kind(
        *(FindingKind.CRASH, Severity.CRITICAL, 0.8),
        message("crash.all_failed", ranks=len(ways), **what),
        message("crash.all_failed_remedy"),
        "error",
        tuple(_ranks(ways)),
    )


def _failed_after(ways: pd.Series[str], failed: list[int], calls: Mapping[int, str]) -> _Kind:
    """Return what is said of ranks that failed after others had ended: the fewer of both are named.

    Who failed in a message lacks its other end: how many ranks there are on either side tells nothing.
    """
    before = ways[: int(ways.isin(set(ways[failed])).to_numpy().argmax())]
    ended = _ranks(before[before == _IN_ORDER])
    is_more = len(ended) > len(failed)
    if all(calls.get(rank) in MESSAGES for rank in failed):
        return _Kind(
            *(FindingKind.CRASH, Severity.CRITICAL, 0.6),
            message("crash.after_end", ended=ended, ranks=failed, how=sorted(set(ways[failed]))),
            message("crash.remedy_message_after_end", ranks=failed),
            _ENDED_FIRST,
            tuple(failed),
        )
    return _Kind(
        *(FindingKind.CRASH, Severity.CRITICAL, 0.6),
        message("crash.after_end", ended=ended, ranks=failed, how=sorted(set(ways[failed]))),
        message("crash.remedy_after_most_ended", ranks=failed)
        if is_more
        else message("crash.remedy_after_end", ended=ended),
        _ENDED_FIRST,
        tuple(failed if is_more else ended),
    )

"""Collectives whose members issued different things: who differs, in what, and at which line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.hangs.mismatch import Issue, Mismatch, mismatches
from ...account.hangs.newest_attempt import rows_of_newest_attempt
from ...account.hangs.noted import as_dumped
from ...account.hangs.stacks import line_of_call, stack_messages
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from .issued import differing_message, issue_message, issued_by, number_message
from .standstill_words import SHOWN, group_message, where_of

REMEDIES = {
    "kind": message("mismatch.remedy_kind"),
    "size": message("mismatch.remedy_size"),
    "dtype": message("mismatch.remedy_dtype"),
    "root": message("mismatch.remedy_root"),
    "order": message("mismatch.remedy_order"),
    "left_out": message("mismatch.remedy_left_out"),
    "extra": message("mismatch.remedy_extra"),
    "splits": message("mismatch.remedy_splits"),
}

_FOLDERS = re.compile(r"^.*[/\\(]")
"""What stands before the name of a file, the function that it belongs to included."""
MISMATCHES = frozenset(f"mismatch_{what}" for what in REMEDIES)
"""Causes that tell what members issued differently."""


def noted_mismatch_findings(trace: Trace) -> Iterator[Finding]:
    """Yield the same for what ranks had noted of operations that were not recorded."""
    dumped = as_dumped(trace)
    if dumped is None:
        return
    ranks = sorted(set(dumped.frame("collective")["rank"]))
    for found in mismatches(dumped)[:SHOWN]:
        # The newest of a group are noted: that all before agree is not known.
        finding = _finding(dumped, found, is_first=False)
        yield replace(finding, evidence=(*finding.evidence, message("mismatch.noted", ranks=ranks)))


def mismatch_findings(trace: Trace, ended: Sequence[Mismatch]) -> Iterator[Finding]:
    """Yield a finding for the first mismatch of each group; where ranks differ, nobody is a victim's cause.

    Args:
        trace: The capture.
        ended: Those that ended all the same: up to one of these the members did not agree.
    """
    before = {one.group_id for one in ended}
    for found in mismatches(trace)[:SHOWN]:
        yield _finding(trace, found, is_first=found.is_first and found.group_id not in before)


def ended_mismatch_findings(trace: Trace, ended: Sequence[Mismatch]) -> Iterator[Finding]:
    """Yield a finding for the first mismatch of each group that ended on all members all the same.

    The library went on, with data that is wrong or still under way: what stands later may stand for it.
    """
    for found in ended[:SHOWN]:
        finding = _finding(trace, found, is_first=True)
        yield replace(
            finding,
            severity=Severity.WARNING,
            confidence=0.5,
            evidence=(message("mismatch.ended"), *finding.evidence),
        )


def _finding(trace: Trace, found: Mismatch, *, is_first: bool) -> Finding:
    ranks = tuple(found.different)
    where = where_of(ranks, trace)
    where["group_id"] = found.group_id
    if len(ranks) == 1:
        where["rank"] = ranks[0]
    return Finding(
        kind=FindingKind.HANG,
        severity=Severity.CRITICAL,
        where=where,
        claim=_claim(trace, found),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.95 if found.usual_ranks else 0.7,
        evidence=tuple(_evidence(trace, found, is_first=is_first)),
        remedy=_remedy(trace, found),
        cause=f"mismatch_{found.what}",
    )


def _remedy(trace: Trace, found: Mismatch) -> Message:
    """Return what to do; sizes given at two lines of the program may be of two operations."""
    if found.what == "size" and found.usual_ranks:
        own = _line(_issued(trace, found, *next(_issues_of(found))))
        usual = _line(_issued(trace, found, found.usual_ranks, found.usual))
        if own and usual and own != usual:
            return message("mismatch.remedy_two_lines")
    return REMEDIES[found.what]


def _issues_of(found: Mismatch) -> Iterator[tuple[tuple[int, ...], Issue]]:
    """Yield each rank that differs, with what it issued."""
    for rank, own in found.different.items():
        yield (rank,), own


def _line(issued: Message) -> str:
    """Return file and line of the program where an operation was issued; nothing where that is not known."""
    known = issued.values
    place = known.get("place", f"{known['file']}:{known['line']}" if "line" in known else "")
    return _FOLDERS.sub("", str(place)).rstrip(")")


def _claim(trace: Trace, found: Mismatch) -> Message:
    ranks, others = list(found.different), len(found.usual_ranks)
    seq = number_message(trace, found.group_id, found.seq)
    group = group_message(trace, found.group_id)
    first = next(iter(found.different.values()))
    sizes = {"sent_bytes": found.sent_bytes, "received_bytes": found.received_bytes}
    if found.pair is not None and found.is_counted:
        ends = {"source": found.pair[0], "target": found.pair[1]}
        counts = {"sent": found.sent_bytes, "received": found.received_bytes}
        return message("mismatch.pair_counted", **ends, seq=seq, group=group, **counts)
    if found.pair is not None:
        ends = {"source": found.pair[0], "target": found.pair[1]}
        return message("mismatch.pair", **ends, seq=seq, group=group, **sizes)
    if found.what == "splits" and found.is_counted:
        counts = {"sent": found.sent_bytes, "received": found.received_bytes}
        return message("mismatch.splits_counted", ranks=ranks, seq=seq, group=group, **counts)
    if found.what == "splits":
        return message("mismatch.splits", ranks=ranks, seq=seq, group=group, **sizes)
    if not found.usual_ranks:
        return message("mismatch.different", ranks=ranks, seq=seq, group=group)
    if found.what == "order":
        return message("mismatch.order", ranks=ranks, seq=seq, group=group, others=others)
    if found.what == "left_out":
        usual = issue_message(found.usual)
        return message("mismatch.left_out", ranks=ranks, usual=usual, seq=seq, group=group)
    if found.what == "extra":
        own = issue_message(first)
        return message("mismatch.extra", ranks=ranks, own=own, seq=seq, group=group, others=others)
    return message(
        "mismatch.claim",
        ranks=ranks,
        own=differing_message(found.what, first),
        usual=differing_message(found.what, found.usual),
        seq=seq,
        group=group,
    )


def _evidence(trace: Trace, found: Mismatch, *, is_first: bool) -> Iterator[Message]:
    for ranks, own in islice(_issues_of(found), SHOWN):
        yield _issued(trace, found, ranks, own)
    if found.usual_ranks:
        yield _issued(trace, found, found.usual_ranks, found.usual)
    if is_first and _is_recorded(trace, found.group_id, found.seq - 1):
        before = number_message(trace, found.group_id, found.seq - 1)
        yield message("mismatch.agreed", seq=before)
    # The first place of its like may be another one than where the others stand.
    yield from stack_messages(trace, (*found.different, *found.usual_ranks), most=SHOWN)


def _issued(trace: Trace, found: Mismatch, ranks: tuple[int, ...], issue: Issue) -> Message:
    """Return what ranks issued, and where in the program, where that was recorded."""
    calls = trace.frame("collective_call")
    own = calls[(calls["rank"] == ranks[0]) & (calls["seq"] == found.seq)]
    own = own[own["group_id"].astype(str) == found.group_id]
    place = next((place for place in own["place"] if isinstance(place, str) and place), None)
    if place is None and _is_newest(trace, found, ranks):
        # Where the first of its like was issued may be another line of the program.
        place = line_of_call(trace, ranks)
    return issued_by(trace, found.group_id, ranks, issue, place=place)


def _is_recorded(trace: Trace, group_id: str, seq: int) -> bool:
    """Return whether any member has a record of a collective."""
    rows = trace.frame("collective")
    return bool(((rows["seq"] == seq) & (rows["group_id"].astype(str) == group_id)).any())


def _is_newest(trace: Trace, found: Mismatch, ranks: tuple[int, ...]) -> bool:
    """Return whether some ranks have issued nothing after the operation in which members differ."""
    rows, sent = (rows_of_newest_attempt(trace, name) for name in ("collective", "p2p"))
    rows, sent = (own[own["rank"].isin(ranks)] for own in (rows, sent))
    is_own = (rows["group_id"] == found.group_id) & (rows["seq"] == found.seq)
    own = rows[is_own].groupby("rank")["event_id"].max()
    issued = pd.concat([one[["rank", "event_id"]] for one in (rows, sent)])
    newest = issued.groupby("rank")["event_id"].max()
    return bool(newest.eq(own.reindex(newest.index)).all())

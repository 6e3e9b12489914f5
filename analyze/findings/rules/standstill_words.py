"""How findings about captures that ended early name ranks, operations and moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from signal import SIGKILL
from typing import NamedTuple

import pandas as pd

from ...account.devices.faults import fault_messages, faulty_devices
from ...account.hangs.ended import waited_until_ns
from ...account.hangs.hang import OpenOperation, WaitGraph
from ...account.hangs.messages_apart import messages_apart
from ...account.hangs.passes_apart import passes_apart
from ...account.hangs.rank_ends import LED_BY_NS, OWN_SIGNALS, ends_of_ranks
from ...account.hangs.unequal_transfers import transfer_ends
from ...align.steps.last_records import last_record_ns
from ...tables.results import Where
from ...tables.trace import Trace
from ...wording.message import Message, message
from ...wording.words import exit_words
from .issued import number_message

MOST_LISTED = 32
LEAST_SAID_NS = 50_000_000
"""A wait below that is no wait: a sign of life may be older than the operation."""
SHOWN = 4
"""Ranks or operations that are named one by one."""


def waited_for(trace: Trace, graph: WaitGraph, ranks: tuple[int, ...]) -> Iterator[Message]:
    """Yield where others waited for ranks, one sentence for all that are alike, of the first few."""
    progress = trace.frame("progress").astype({"group_id": str})
    issued = progress.set_index(["group_id", "rank"])["issued_seq"].dropna().to_dict()
    # The operation that most ranks wait in says most; of equals the oldest.
    by_weight = sorted(graph.operations, key=lambda o: (-len(o.since_ns), min(o.since_ns.values())))
    lacking = [(o, frozenset((*o.absent, *o.uncaptured))) for o in by_weight]
    alike: dict[tuple[int, int | None], list[int]] = {}
    for rank in ranks:
        at = next(at for at, (_, missing) in enumerate(lacking) if rank in missing)
        worst = by_weight[at]
        known = issued.get((worst.key[0], rank)) if worst.key[2] < 0 else None
        last = int(known) if known is not None and known > 0 else None
        alike.setdefault((at, last), []).append(rank)
    for (at, last), absent in list(alike.items())[:SHOWN]:
        waiting = sorted(by_weight[at].since_ns)
        operation = operation_message(trace, by_weight[at])
        place = {"waiting": waiting, "absent": absent, "operation": operation}
        if last is None:
            yield message("hang.waited_for", **place)
        else:
            own = number_message(trace, by_weight[at].key[0], last)
            yield message("hang.waited_for_after", **place, last=own)


def device_faults_of(trace: Trace, ranks: tuple[int, ...]) -> Iterator[Message]:
    """Yield what the devices of the first few ranks reported, where they did."""
    faulty = {device.rank: device for device in faulty_devices(trace)}
    for device in [faulty[rank] for rank in ranks if rank in faulty][:SHOWN]:
        faults = fault_messages(device.faults)
        yield message("hang.device", rank=device.rank, uuid=device.uuid, faults=faults)


def where_of(ranks: list[int] | tuple[int, ...], trace: Trace) -> Where:
    """Return ranks as a place, with their stage if they have only one."""
    where: Where = {"ranks": list(ranks[:MOST_LISTED])}
    if trace.layout is not None:
        inside = [rank for rank in ranks if rank < trace.layout.world_size]
        stages = {trace.layout.coordinates(rank)["pp"] for rank in inside}
        if len(stages) == 1 and trace.layout.pp > 1:
            where["stage"] = stages.pop()
    return where


def operation_message(trace: Trace, found: OpenOperation) -> Message:
    """Return an operation by its kind, number and group."""
    group_id, seq, source, target = found.key
    group = group_message(trace, group_id)
    if source >= 0:
        return message("operation.transfer", source=source, target=target, group=group)
    number = number_message(trace, group_id, seq)
    return message("operation.collective", kind=found.kind, seq=number, group=group)


def stuck_message(trace: Trace, found: OpenOperation) -> Message:
    """Return that an operation did not finish which all members issued, as far as that is known of them."""
    operation = operation_message(trace, found)
    group_id, seq, source, _ = found.key
    groups, progress = trace.frame("group"), trace.frame("progress")
    group = groups[groups["group_id"].astype(str) == group_id]
    # Where no file says who is in it, a rank without a file may be.
    size = int(str(trace.run.get("world_size") or 0))
    others = set(range(size)) if group["evidence"].notna().any() else set()
    members = {int(rank) for ranks in group["ranks"] for rank in ranks} | others
    own = progress[progress["group_id"].astype(str) == group_id]
    came = {*found.since_ns, *own.loc[own["issued_seq"].ge(seq).fillna(value=False), "rank"]}
    unknown = sorted(members - came)
    if source >= 0 or not unknown:
        return message("hang.stuck", operation=operation)
    return message("hang.stuck_unknown", operation=operation, unknown=unknown)


def killed_of(trace: Trace, ranks: Sequence[int]) -> Iterator[Message]:
    """Yield which of some ranks a signal ended in the middle of their work, in the end."""
    ends = ends_of_ranks(trace)
    signals = ends.loc[ends.index.isin(ranks), "wait_status"].dropna().astype("int64")
    for own in sorted(set(signals[signals.isin(OWN_SIGNALS)])):
        yield message(
            "crash.ended_by", ranks=sorted(signals.index[signals == own]), how=exit_words(own)
        )
        if own == SIGKILL and _is_outlived(ends, signals.index[signals == own]):
            yield message("crash.killed")


def _is_outlived(ends: pd.DataFrame, ranks: pd.Index) -> bool:
    """Return whether others ended after some ranks, and otherwise: else a launcher may have killed these as the last."""
    others = ends.loc[ends.index.difference(ranks)]
    # A launcher kills one after the other, which takes a busy host a while.
    others = others[others["wait_status"].ne(SIGKILL).fillna(value=True).astype(bool)]
    own_ns = ends.loc[ranks, "ended_ns"].max()
    return pd.isna(own_ns) or bool((others["until_ns"] >= own_ns + LED_BY_NS).any())


class StepCounts(NamedTuple):
    """How many steps ended: of ranks that ended in order, and of those that did not."""

    own: int
    others: int


def step_counts(trace: Trace, ended: Sequence[int], others: Sequence[int]) -> StepCounts | None:
    """Return the steps of ranks that ended in order and of others; None where either has none."""
    steps = trace.frame("step").groupby("rank")["step"].nunique()
    own, rest = steps[steps.index.isin(ended)], steps[steps.index.isin(others)]
    return StepCounts(int(own.max()), int(rest.max())) if len(own) and len(rest) else None


def steps_message(ended: Sequence[int], steps: StepCounts) -> Message:
    """Return with how many steps ranks ended, and how many the others had."""
    return message("fewer_batches.steps", ended=ended, own=steps.own, others=steps.others)


def unlike_passes(trace: Trace) -> Iterator[Message]:
    """Yield in which step ranks made other numbers of passes than most, where that was recorded."""
    found = passes_apart(trace)
    if found is None:
        return
    values = {
        "step": found.step,
        "ranks": found.ranks,
        "forward": found.own.forward,
        "backward": found.own.backward,
        "usual_forward": found.usual.forward,
        "usual_backward": found.usual.backward,
    }
    if found.steps == 1:
        yield message("fewer_batches.passes_once", **values)
    else:
        yield message("fewer_batches.passes", **values, steps=found.steps)


def unlike_messages(trace: Trace) -> Iterator[Message]:
    """Yield in which step a rank first sent other messages than were received, where that was recorded."""
    found = messages_apart(trace)
    if found is not None:
        yield message("crash.messages_apart", **found._asdict())


def group_message(trace: Trace, group_id: str) -> Message:
    """Return a group by its name, with what the program calls it."""
    groups = trace.frame("group")
    described = groups.loc[groups["group_id"].astype(str) == group_id, "description"]
    text = next((text for text in described if isinstance(text, str) and text), None)
    if text is None:
        return message("operation.group", group_id=group_id)
    return message("operation.group_named", group_id=group_id, description=text)


def places_of(trace: Trace, graph: WaitGraph) -> Iterator[Message]:
    """Yield at which lines of the program the ranks issued what they wait in, where that was recorded."""
    for found in graph.operations[:SHOWN]:
        own = _transfer_places(trace, found) if found.key[2] >= 0 else _call_places(trace, found)
        own = own[own["rank"].isin(list(found.since_ns))].dropna(subset=["place"])
        by_place = own.groupby("place", sort=False, observed=True)["rank"]
        ranks = {str(place): sorted(map(int, own)) for place, own in by_place}
        # One line of a few ranks may be another operation, of the same size by chance.
        said = [message("hang.place_of", place=place, ranks=own) for place, own in ranks.items()]
        if ranks:
            operation = operation_message(trace, found)
            places = list(ranks) if len(ranks) == 1 else said[:SHOWN]
            yield message("hang.issued_at", operation=operation, places=places)


def _call_places(trace: Trace, found: OpenOperation) -> pd.DataFrame:
    """Return rank and place of the members of a collective."""
    calls = trace.frame("collective_call")
    is_own = (calls["seq"] == found.key[1]) & (calls["group_id"].astype(str) == found.key[0])
    return calls.loc[is_own, ["rank", "place"]]


def _transfer_places(trace: Trace, found: OpenOperation) -> pd.DataFrame:
    """Return rank and place of the ends of a transfer, whose numbers are not those of collectives."""
    ends = transfer_ends(trace)
    is_own = pd.Series(data=True, index=ends.index)
    for name, value in zip(("group_id", "seq", "source", "target"), found.key, strict=True):
        is_own &= ends[name] == value
    own = ends.loc[is_own, ["rank", "event_id"]]
    return own.merge(trace.frame("transfer_call"), on=["rank", "event_id"])[["rank", "place"]]


def not_begun(trace: Trace, found: OpenOperation) -> Iterator[Message]:
    """Yield whose devices have not begun a collective that others have begun, where that was recorded."""
    calls = trace.frame("collective_call").dropna(subset=["is_started"])
    own = calls[(calls["seq"] == found.key[1]) & calls["rank"].isin(list(found.since_ns))]
    own = own[own["group_id"].astype(str) == found.key[0]]
    begun = own["is_started"].astype(bool)
    late = sorted(map(int, own.loc[~begun, "rank"]))
    if late and begun.any():
        yield message("hang.not_begun", late=late, begun=sorted(map(int, own.loc[begun, "rank"])))


_CLOCK_NS = 1_000
"""Stamps of dumps are numbers of double precision in places: less is none."""


def oldest_open(trace: Trace, graph: WaitGraph) -> Message:
    """Return when the first rank began to wait."""
    since_ns = waiting_since_ns(graph)
    # Its issue is a record too; the last one is known to some hundred ns of a wall clock only.
    before_ns = max(last_record_ns(trace) - since_ns, 0)
    is_last = before_ns < _CLOCK_NS
    if trace.capabilities.has_comparable_times:
        if is_last:
            return message("hang.oldest_last")
        return message("hang.oldest", before_ns=before_ns)
    moment = f"{datetime.fromtimestamp(since_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if is_last:
        return message("hang.oldest_last_at", moment=moment)
    return message("hang.oldest_at", moment=moment, before_ns=before_ns)


def waited(trace: Trace, graph: WaitGraph) -> Iterator[Message]:
    """Yield how long the others waited at least, where that is known."""
    waited_ns = waited_at_least_ns(trace, graph)
    if waited_ns is not None:
        yield message("hang.waited", waited_ns=waited_ns)


def waited_at_least_ns(trace: Trace, graph: WaitGraph) -> int | None:
    """Return how long ranks had waited when they were last seen; None if that is not known, or nothing."""
    until_ns = waited_until_ns(trace, graph)
    waited_ns = 0 if until_ns is None else until_ns - waiting_since_ns(graph)
    return waited_ns if waited_ns >= LEAST_SAID_NS else None


def waiting_since_ns(graph: WaitGraph) -> int:
    """Return when the first rank began to wait in an operation that is open."""
    return min(min(found.since_ns.values()) for found in graph.operations)


def with_attempt(what: Message, trace: Trace) -> Message:
    """Return a claim with the attempt that it is about, and that no step of it ended, as far as that is so."""
    starts = trace.frame("attempt")
    if starts.empty:
        return what
    last = starts.iloc[-1]
    attempt, is_later = int(last["attempt"]), len(starts) > 1 or int(last["attempt"]) > 1
    if not pd.isna(last["last_step"]):
        return message("attempt.in_attempt", what=what, attempt=attempt) if is_later else what
    if is_later:
        return message("attempt.before_first_step_of", what=what, attempt=attempt)
    return message("attempt.before_first_step", what=what)

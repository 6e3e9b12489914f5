"""What the programs of ranks were in when their job came to a standstill, or ended, as the probe noted it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.manifest import LAST_STACK_KEY
from meshscope.probe.schema.printable import printable
from meshscope.probe.schema.standstill_tables import STANDING
from meshscope.probe.schema.terms import StackMoment

from ...tables.trace import Trace
from ...wording.message import Message, message
from .notes import notes_of_last_step

_LIBRARY = r"(?:^|[/\\])(?:site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]|^<"
"""Files that are not the program's own."""
MEETINGS = ("init_process_group", "new_group", "split_group")
"""Functions in which ranks wait for each other outside of any operation, outermost first."""
CALL_FILE = "distributed_c10d.py"
"""Where a rank stands that is in a call of communication."""
_BETWEEN_RANKS = r"[/\\]torch[/\\](?:distributed|nn[/\\]parallel)[/\\]|[/\\]autograd[/\\]graph\.py$"
"""Files of torch in which ranks wait for each other, or for what a backward pass communicates."""
_BACKWARD = "_engine_run_backward"
"""Where the thread of the program is while autograd runs, which may issue and wait for what hooks have made."""
MESSAGES = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "recv_object_list"})
"""Calls that are of a pair of ranks."""
_CALLERS = 3
"""Functions of the program that are named beside the innermost one."""
_MOST_FRAMES = 64
"""Deeper stacks are recursions, whose ends say all."""
_MOST_LENGTH = 300
"""Longer names fill a report, and come from damage."""
_MOST_LINE = 1 << 31
_OF_MOMENT: dict[str, str] = {
    StackMoment.OTHER_DIED: "was",
    StackMoment.RAISED: "raised",
    StackMoment.TIMED_OUT: "raised",
    StackMoment.PEER_LOST: "raised",
    StackMoment.INTERRUPTED: "interrupted",
    StackMoment.FATAL_SIGNAL: "signalled",
}
"""How ranks were where they were seen at the end; in a standstill they hung or kept running."""


def standing_at_the_end(steps: pa.Table, manifests: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Return the ``standing`` rows of the ranks whose last step never ended.

    Args:
        steps: The ``step`` table.
        manifests: Manifests of the ranks.
    """
    stood = notes_of_last_step(steps, manifests)
    last = notes_of_last_step(steps, manifests, LAST_STACK_KEY)
    rows = []
    for rank in sorted({*stood, *last}):
        moment, note = _telling(stood.get(rank, {}), last.get(rank, {}))
        rows += [
            {"rank": rank, "depth": depth, "moment": moment.value, **frame}
            for depth, frame in enumerate(_frames(note))
        ]
    return STANDING.conform(pa.Table.from_pylist(rows)) if rows else STANDING.empty()


def _telling(
    stood: Mapping[str, Any], last: Mapping[str, Any]
) -> tuple[StackMoment, Mapping[str, Any]]:
    """Return the note of a rank that tells most: where an exception came from, else where it stood for long.

    What came from where the rank had stood for long ended a wait, whatever its text.
    """
    moments = [moment.value for moment in StackMoment]
    moment = StackMoment(last["moment"]) if last.get("moment") in moments else None
    place = _innermost(last)
    is_where_it_stood = place is not None and place == _innermost(stood)
    # Who has waited for long is ended by a watchdog, by a signal.
    is_ended = moment is StackMoment.FATAL_SIGNAL and is_where_it_stood
    is_outside = moment in (StackMoment.OTHER_DIED, StackMoment.INTERRUPTED)
    goes_on = bool(stood.get("goes_on"))
    if moment is None or is_ended or (is_outside and stood and not goes_on):
        return StackMoment.STANDSTILL, stood
    if is_outside:
        # Who kept running is known best by where it was last.
        return moment, {**last, "goes_on": goes_on}
    is_raised = moment is StackMoment.RAISED and not goes_on
    if is_raised and place and is_where_it_stood and re.search(_BETWEEN_RANKS, place[0]):
        moment = StackMoment.TIMED_OUT
    return moment, last


def _innermost(note: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return file and line of the innermost function of a note: what a signal leaves has no qualified names."""
    frame = next(_frames(note), None)
    return None if frame is None else (str(frame["file"]), int(frame["line"]))


def _frames(note: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the noted functions, from the innermost one on; of a damaged note none within the damage."""
    stack = note.get("stack")
    for frame in stack[:_MOST_FRAMES] if isinstance(stack, list) else ():
        match frame:
            case [str(function), str(file), line] if type(line) is int and 0 <= line < _MOST_LINE:
                yield {
                    "function": printable(function)[:_MOST_LENGTH],
                    "file": printable(file)[-_MOST_LENGTH:],
                    "line": line,
                    "goes_on": note.get("goes_on") is True,
                    "time_ns": note["time_ns"],
                }
            case _:
                return


def raised_ranks(trace: Trace) -> set[int]:
    """Return the ranks that an error ended which tells of no wait for others."""
    frame = trace.frame("standing")
    return set(map(int, frame.loc[frame["moment"].eq(StackMoment.RAISED.value), "rank"]))


def raised_elsewhere(trace: Trace) -> frozenset[int]:
    """Return the ranks that an error of their own ended: it came from where nobody waits for others."""
    inner = trace.frame("standing")
    inner = inner[(inner["depth"] == 0) & inner["moment"].eq(StackMoment.RAISED.value)]
    return frozenset(map(int, inner.loc[~_is_between_ranks(inner), "rank"]))


def lost_a_peer(trace: Trace) -> frozenset[int]:
    """Return the ranks that an error ended which tells that a peer was gone: they are victims of it."""
    inner = trace.frame("standing")
    inner = inner[(inner["depth"] == 0) & inner["moment"].eq(StackMoment.PEER_LOST.value)]
    return frozenset(map(int, inner.loc[_is_between_ranks(inner), "rank"]))


def timed_out(trace: Trace) -> bool:
    """Return whether a rank waited for others until an error said that this took too long."""
    inner = trace.frame("standing")
    inner = inner[(inner["depth"] == 0) & inner["moment"].eq(StackMoment.TIMED_OUT.value)]
    return bool(_is_between_ranks(inner).any())


def _is_between_ranks(inner: pd.DataFrame) -> pd.Series[bool]:
    return inner["file"].astype(str).str.contains(_BETWEEN_RANKS).astype(bool)


def stack_messages(trace: Trace, ranks: Sequence[int], *, most: int) -> Iterator[Message]:
    """Yield what ranks were in, those that were in the same together; where fewest are first.

    Args:
        trace: The capture.
        ranks: Whose stacks.
        most: How many places to name.
    """
    frame = trace.frame("standing")
    frame = frame[frame["rank"].isin(ranks)]
    if frame.empty:
        return
    groups = _places(frame).groupby(["function", "callers", "manner"])["rank"]
    together = groups.agg(rank=list, count="size").reset_index()
    fewest_first = together.sort_values("count", kind="stable")
    for row in fewest_first.head(most).to_dict("records"):
        yield _said(row["manner"], row["rank"], row["function"], list(row["callers"]))


class Meeting(NamedTuple):
    """A function in which some ranks waited for the others."""

    function: str
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    """Those that were known to be elsewhere."""


def meeting(trace: Trace) -> Meeting | None:
    """Return where ranks waited for others to make a process group; None unless all stacks are known and some are elsewhere."""
    frame = trace.frame("standing")
    known = set(map(int, frame["rank"]))
    inside = frame[frame["file"].astype(str).str.endswith(CALL_FILE)]
    for function in MEETINGS:
        waiting = set(map(int, inside.loc[inside["function"] == function, "rank"]))
        if waiting and known > waiting and known.issuperset(trace.ranks):
            return Meeting(function, tuple(sorted(waiting)), tuple(sorted(known - waiting)))
    return None


def away_from_call(
    trace: Trace, lost: Collection[int], dead: Collection[int] = ()
) -> Meeting | None:
    """Return the one call, or pass, in which ranks stand while the others are known to be elsewhere.

    Args:
        trace: The capture.
        lost: Ranks whose processes showed no sign of life meanwhile: they have no stacks.
        dead: Ranks that were killed before the others ended: of these a stack may lack.
    """
    inner = standing_inner(trace)
    inner = inner[_is_between_ranks(inner)]
    waiting = set(map(int, inner["rank"]))
    # A backward pass waits for the call that its hooks have made.
    functions = set(calls_by_rank(trace).values()) or set(inner["function"].map(_in_words))
    known = set(map(int, trace.frame("standing")["rank"])) | set(lost)
    absent = known - waiting
    if not absent or len(functions) != 1 or not (known | set(dead)).issuperset(trace.ranks):
        return None
    return Meeting(functions.pop(), tuple(sorted(waiting)), tuple(sorted(absent)))


def _in_words(function: str) -> str:
    return "the backward pass" if function == _BACKWARD else function


def different_calls(trace: Trace) -> tuple[Meeting, ...]:
    """Return the collectives in which all ranks stand, the rarest first; nothing where they are alike.

    Nothing either where ranks may stand in different groups.
    """
    calls = calls_by_rank(trace)
    if not set(calls).issuperset(trace.ranks) or trace.row_count("group") != 1:
        return ()
    by_call: dict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(calls.items()):
        by_call[call].append(rank)
    if len(by_call) < 2 or MESSAGES & set(by_call):
        return ()
    rarest = sorted(by_call.items(), key=lambda one: len(one[1]))
    return tuple(Meeting(call, tuple(ranks), ()) for call, ranks in rarest)


def calls_by_rank(trace: Trace) -> dict[int, str]:
    """Return the innermost call of communication of each rank that stands in one and does not go on.

    Of ranks that make a group it is that, not what it consists of.
    """
    inner = standing_inner(trace)
    inner = inner[inner["file"].astype(str).str.endswith(CALL_FILE)]
    calls = dict(zip(inner["rank"].astype(int), inner["function"].astype(str), strict=True))
    frame = trace.frame("standing")
    frame = frame[frame["rank"].isin(calls) & frame["function"].isin(MEETINGS)]
    frame = frame[frame["file"].astype(str).str.endswith(CALL_FILE)].sort_values("depth")
    return calls | dict(zip(frame["rank"].astype(int), frame["function"].astype(str), strict=True))


def waits_for_others(trace: Trace) -> frozenset[int]:
    """Return the ranks that stand where ranks wait for each other: in a call, or in what DDP or a backward pass makes."""
    inner = standing_inner(trace)
    return frozenset(map(int, inner.loc[_is_between_ranks(inner), "rank"]))


def standing_inner(trace: Trace) -> pd.DataFrame:
    """Return the innermost function of each rank that does not go on, and that raised no error of its own there."""
    frame = trace.frame("standing")
    is_inner = (frame["depth"] == 0) & ~frame["goes_on"].astype(bool)
    return frame[is_inner & frame["moment"].ne(StackMoment.RAISED.value)]


def line_of_call(trace: Trace, ranks: Collection[int]) -> str | None:
    """Return the line of the program that called what some ranks stand in; None if it is no call, or not one line."""
    inner = standing_inner(trace)
    is_call = inner["file"].astype(str).str.endswith(CALL_FILE)
    is_backward = inner["function"].eq(_BACKWARD)
    inside = set(map(int, inner.loc[is_call | is_backward, "rank"]))
    places = stack_places(trace)
    callers = places.loc[places["rank"].isin(ranks), "callers"]
    lines = {callers[0] if callers else "" for callers in callers}
    return next(iter(lines)) or None if inside.issuperset(ranks) and len(lines) == 1 else None


def stack_places(trace: Trace) -> pd.DataFrame:
    """Return what each rank was in: rank, goes_on, function with file and line, and callers of the program."""
    return _places(trace.frame("standing"))


def _said(manner: str, ranks: list[int], function: str, callers: list[str]) -> Message:
    """Return that ranks hung, kept running, were seen, or raised an exception in a function."""
    if callers:
        return _said_with(manner, {"ranks": ranks, "function": function, "callers": callers})
    place: dict[str, Any] = {"ranks": ranks, "function": function}
    match manner:
        case "raised":
            return message("hang.raised", **place)
        case "was":
            return message("hang.was", **place)
        case "signalled":
            return message("hang.signalled", **place)
        case "interrupted":
            return message("hang.interrupted_in", **place)
        case "running":
            return message("hang.running", **place)
    return message("hang.at", **place)


def _said_with(manner: str, place: dict[str, Any]) -> Message:
    """Return the same with the functions of the program that called that one."""
    match manner:
        case "raised":
            return message("hang.raised_called_by", **place)
        case "was":
            return message("hang.was_called_by", **place)
        case "signalled":
            return message("hang.signalled_called_by", **place)
        case "interrupted":
            return message("hang.interrupted_called_by", **place)
        case "running":
            return message("hang.running_called_by", **place)
    return message("hang.at_called_by", **place)


def _manners(inner: pd.DataFrame) -> list[str]:
    """Return how each rank was in its innermost function, in a word."""
    return [
        _OF_MOMENT.get(str(moment), "running" if goes_on else "hung")
        for moment, goes_on in zip(inner["moment"].astype(object), inner["goes_on"], strict=True)
    ]


def _places(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rank, goes_on, the innermost function, those of the program that called it, and how the rank was there."""
    frame = frame.sort_values(["rank", "depth"])
    inner = frame["depth"] == 0
    file = frame["file"].str.replace(r"^.*[/\\]", "", regex=True)
    # A thread that goes on within a function is at another line of it by now.
    is_past = frame["goes_on"] & frame["moment"].eq(StackMoment.STANDSTILL.value)
    line = (":" + frame["line"].astype(str)).where(~(inner & is_past), "")
    places = frame["function"] + " (" + file + line + ")"
    callers = frame[~inner & ~frame["file"].str.contains(_LIBRARY)]
    callers = callers[callers.groupby("rank").cumcount() < _CALLERS]
    called_by = places[callers.index].groupby(callers["rank"]).agg(tuple)
    found = frame.loc[inner, ["rank", "goes_on"]].assign(function=places[inner])
    return found.assign(
        manner=_manners(frame[inner]),
        callers=[called_by.get(rank, ()) for rank in found["rank"]],
    )

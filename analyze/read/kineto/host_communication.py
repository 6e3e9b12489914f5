"""Communication that the host does itself (gloo, MPI), of files without device events.

A backend of the host leaves no kernel: its annotation lasts while a thread of it works on the
operation. What that costs is the part in which the host stood still. The profiler does not
mark it, so it is taken to begin where the last operator ended that computes and began before
the operation was done.
"""

from __future__ import annotations

import re

import numpy as np

from meshscope.probe.schema.terms import CollectiveKind, Direction, TimeSource

from ..kernel_names import collective_kind
from .columns import StepWindows
from .communication import RankCommunication
from .counted import Counted
from .event_columns import Events, IntArray, RoledEvents

HOST_COLLECTIVE = re.compile(r"(?:gloo|mpi):(\w+)")
_WORK = re.compile(r"(?!autograd::|c10d::|_c10d_functional|fsdp::|profiler::)\w+::")
"""Operators that compute: those around them (autograd's, hooks) last while they wait."""
_ISSUE = re.compile(r"c10d::|_c10d_functional")
_DIRECTIONS = {"send": Direction.SEND.value, "recv": Direction.RECV.value}
_NEVER = np.iinfo(np.int64).min


def add_host_communication(found: RankCommunication, roles: RoledEvents, steps: StepWindows) -> int:
    """Add the rows of a rank whose host communicates; return how many operations were left out.

    An annotation names no group, so this needs that the rank is in one group alone.

    Args:
        found: What the file says about its groups; gets the rows.
        roles: The events of a file without device events.
        steps: Its steps.
    """
    word_of = {code: match[1] for code, match in roles.names_like(HOST_COLLECTIVE).items()}
    notes = roles.host_note.named(word_of)
    notes = notes.at(np.argsort(notes.start, kind="stable"))
    groups = [name for name, group in found.groups.items() if len(group.ranks) > 1]
    if len(groups) != 1:
        return len(notes)
    end = notes.time.end
    still = np.maximum(notes.start, _last_work(roles, end, _workers(roles, notes)))
    step = steps.step_of(notes.start)
    for i, code in enumerate(notes.name.tolist()):
        direction = _DIRECTIONS.get(word_of[code], "")
        kind = CollectiveKind.OTHER if direction else collective_kind(word_of[code])
        found.counts[Counted.NO_PEER_ON_HOST if direction else Counted.NO_SIZE_ON_HOST] += 1
        found.rows.append(
            {
                "rank": found.rank,
                "step": int(step[i]),
                "group_name": groups[0],
                "direction": direction,
                "peer": -1,
                "kind": kind.value,
                "size_bytes": 0,
                "dtype": None,
                "event_id": i,
                "recorded_seq": -1,
                "stream": 0,
                "issue_ns": int(notes.start[i]),
                "start_ns": int(notes.start[i]),
                "end_ns": int(end[i]),
                "source": TimeSource.HOST_ISSUE.value,
                "wait_start_ns": int(min(still[i], end[i])),
                "wait_end_ns": int(end[i]),
            }
        )
    return 0


def _workers(roles: RoledEvents, notes: Events) -> IntArray:
    """Return the threads of the backend: they have operations, and nothing that a program does.

    What they copy is part of the operation.
    """
    issue = np.array(sorted(roles.names_like(_ISSUE)), dtype=np.int64)
    issuing = roles.operator.select(lambda part: np.isin(part.name, issue)).events.thread
    others = roles.host_note.thread[~np.isin(roles.host_note.name, notes.name)]
    return np.setdiff1d(notes.thread, np.concatenate([issuing, others]))


def _last_work(roles: RoledEvents, until: IntArray, workers: IntArray) -> IntArray:
    """Return for each instant the latest end of an operator that computes and began before it."""
    wanted = np.array(sorted(roles.names_like(_WORK)), dtype=np.int64)
    last = np.full(len(until), _NEVER)
    for part in roles.operator.parts():
        is_work = np.isin(part.name, wanted) & ~np.isin(part.thread, workers)
        work = part.at(np.flatnonzero(is_work))
        if not len(work):
            continue
        order = np.argsort(work.start, kind="stable")
        ends = np.maximum.accumulate(work.time.end[order])
        place = np.searchsorted(work.start[order], until, side="left") - 1
        last = np.maximum(last, np.where(place >= 0, ends[np.maximum(place, 0)], _NEVER))
    return last

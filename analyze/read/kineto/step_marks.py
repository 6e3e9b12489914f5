"""Steps of a file without ``ProfilerStep#``: by what its program did in each of them.

An optimizer notes each of its steps. What lies between the ends of two of them is one step of training, as a
profiler that is told of steps marks it, moved by what the program does between the end of the update and its
own mark::

    mark        |     forward  backward  update |     forward  backward  update |
    by update                                  |                               |
                                               <------------ one step -------->

Where no optimizer is noted, a note of the program that is repeated does, if it covers nearly all of the time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from meshscope.probe.schema.printable import printable

from .event_columns import Events, IntArray, RoledEvents

_UPDATE = re.compile(r"Optimizer\.step#")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function")
_OF_LIBRARIES = re.compile(r"Optimizer\.|nccl:|gloo:|enumerate\(DataLoader|## |ProfilerStep")
"""Notes of libraries: none of them is around a step."""
_NUMBER = re.compile(r"\d+")
_LEAST_COVER = 0.9
"""Share of the time from the first to the last repetition that notes of steps cover."""


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """Steps in order of time, ns, and what they were found by."""

    start: IntArray
    end: IntArray
    by: str
    """A clause for the limits of the rank."""


def found_steps(roles: RoledEvents) -> FoundSteps | None:
    """Return the steps between updates, else those of repeated notes; None where there is neither."""
    return _between_updates(roles) or _repeated_notes(roles)


def _between_updates(roles: RoledEvents) -> FoundSteps | None:
    """Return what lies between the ends of updates.

    A step may hold updates of several optimizers, or several of one: updates without a backward pass between
    them are one. Updates inside of a backward pass, by parameter, end no step.
    """
    updates = roles.host_note.named(roles.names_like(_UPDATE))
    if len(updates) < 2:
        return None
    updates = updates.at(np.argsort(updates.start, kind="stable"))
    codes = np.array(sorted(roles.names_like(_BACKWARD)), dtype=np.int64)
    backward = roles.operator.select(lambda part: np.isin(part.name, codes)).events
    if len(backward):
        order = np.argsort(backward.start, kind="stable")
        begun, ended = backward.start[order], np.maximum.accumulate(backward.time.end[order])
        before = np.searchsorted(begun, updates.start, side="right")
        if (before > 0).any() and (ended[before[before > 0] - 1] > updates.start[before > 0]).any():
            return None
        is_last = np.append(np.diff(before) > 0, True)
    else:
        is_last = np.ones(len(updates), dtype=np.bool_)
    closing = _of_rarest(updates.at(np.flatnonzero(is_last)))
    if len(closing) < 2:
        return None
    ends = np.maximum.accumulate(closing.time.end)
    said = (
        f"no ProfilerStep is marked: a step lies between the ends of two updates of an optimizer ({len(ends)} "
        "in the file); what is before the first and after the last is in no step"
    )
    return FoundSteps(ends[:-1], ends[1:], said)


def _of_rarest(updates: Events) -> Events:
    """Return the updates of the optimizer that updates most rarely, but twice; of several that which is last."""
    names, first, count = np.unique(updates.name, return_index=True, return_counts=True)
    again = count >= 2
    if not again.any():
        return updates.at(np.empty(0, dtype=np.intp))
    names, first, count = names[again], first[again], count[again]
    rarest = count == count.min()
    name = names[rarest][first[rarest].argmax()]
    return updates.at(np.flatnonzero(updates.name == name))


def _repeated_notes(roles: RoledEvents) -> FoundSteps | None:
    """Return the windows of the longest note that is repeated and covers nearly all of the time."""
    notes, found = roles.host_note, None
    alike: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, (code, thread) in enumerate(
        zip(notes.name.tolist(), notes.thread.tolist(), strict=True)
    ):
        name = roles.names[code]
        if not _OF_LIBRARIES.match(name):
            alike[_NUMBER.sub("#", name), thread].append(place)
    extent = int(notes.time.end.max() - notes.start.min()) if len(notes) else 0
    longest = 0.0
    for (stem, _), places in alike.items():
        own = notes.at(np.array(places, dtype=np.intp))
        own = own.at(np.argsort(own.start, kind="stable"))
        if _are_steps(own, extent) and own.dur.mean() > longest:
            longest = float(own.dur.mean())
            said = (
                f"no ProfilerStep is marked: steps are the {len(own)} notes {printable(stem)!r} "
                "of the program"
            )
            found = FoundSteps(own.start, own.time.end, said)
    return found


def _are_steps(notes: Events, extent: int) -> bool:
    """Return whether notes follow each other without an overlap and cover nearly all of a file."""
    if len(notes) < 2 or (notes.start[1:] < notes.time.end[:-1]).any():
        return False
    whole = int(notes.time.end[-1] - notes.start[0])
    return bool(notes.dur.sum() >= _LEAST_COVER * whole and 2 * whole >= extent)

"""Steps of a file without ``ProfilerStep#``: by what its program did in each of them.

An optimizer notes each of its steps. What lies between the ends of two of them is one step of training, as a
profiler that is told of steps marks it, moved by what the program does between the end of the update and its
own mark::

    mark        |     forward  backward  update |     forward  backward  update |
    by update                                  |                               |
                                               <------------ one step -------->

Where no optimizer is noted, a note of the program that is repeated does, if it covers nearly all of the time, or
nearly all launches, as that of an inference engine which schedules requests between two of them. Notes of another
kind between some of them are steps, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.printable import printable

from ...wording.limits import Limit
from ...wording.message import message
from .event_columns import LAUNCH_CALLS, Events, IntArray, RoledEvents

_UPDATE = re.compile(r"Optimizer\.step#")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function")
_OF_LIBRARIES = re.compile(r"Optimizer\.|nccl:|gloo:|enumerate\(DataLoader|## |ProfilerStep")
"""Notes of libraries: none of them is around a step."""
_NUMBER = re.compile(r"\d+")
_MOST_KINDS = 32
"""Kinds of notes, the longest, that may be steps together."""
_LEAST_COVER = 0.9
"""Share of the time from the first to the last repetition, or of all launches, that notes of steps cover."""


class FoundSteps(msgspec.Struct, frozen=True):
    """Steps in order of time, ns, and what they were found by."""

    start: IntArray
    end: IntArray
    by: Limit
    """What the limits of the rank say of them."""


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
    said = message("assumed.steps_between_updates", updates=len(ends))
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
    notes = roles.host_note
    extent = int(notes.time.end.max() - notes.start.min()) if len(notes) else 0
    launches = np.sort(_launches(roles))
    kinds = [_Kind(stem, notes.at(places).by_start()) for stem, places in _alike(roles)]
    kinds.sort(key=lambda kind: -kind.notes.dur.mean())
    for at, kind in enumerate(kinds):
        if at >= _MOST_KINDS and not _are_steps(kind.notes, extent, launches):
            continue
        names, steps = _with_other_kinds(kind, kinds[:_MOST_KINDS], launches)
        if at >= _MOST_KINDS or _are_steps(steps, extent, launches):
            stem = printable(" / ".join(names))
            said = message("assumed.steps_by_notes", notes=len(steps), name=stem)
            ends = np.append(steps.start[1:], steps.time.end[-1])
            return FoundSteps(steps.start, ends, said)
    return None


class _Kind(NamedTuple):
    """The notes of a thread whose names differ in numbers only."""

    stem: str
    notes: Events


def _with_other_kinds(
    kind: _Kind, kinds: Sequence[_Kind], launches: IntArray
) -> tuple[list[str], Events]:
    """Return the stems and the notes of a kind and of those that are steps between some of its own."""
    names, steps = [kind.stem], kind.notes
    for other in kinds:
        if _are_other_steps(other.notes, kind.notes, launches) and _are_free(other.notes, steps):
            steps = Events.joined([steps, other.notes], 0).by_start()
            names.append(other.stem)
    return names, steps


def _are_other_steps(notes: Events, steps: Events, launches: IntArray) -> bool:
    """Return whether notes are steps of another kind, as an engine's prefill between two of its decodes.

    ::

        notes       decode  decode  prefill    decode  decode
        steps       |       |       |          |       |

    Each launches work. What stands between most steps, as an update behind a forward pass does, is part of each.
    """
    works = np.searchsorted(launches, notes.time.end) > np.searchsorted(launches, notes.start)
    place = np.searchsorted(steps.start, notes.start)
    same_thread = notes.thread[0] == steps.thread[0]
    return bool(same_thread and works.all() and 2 * len(np.unique(place)) < len(steps))


def _are_free(notes: Events, steps: Events) -> bool:
    """Return whether notes overlap neither each other nor a step."""
    if (notes.start[1:] < notes.time.end[:-1]).any():
        return False
    place = np.searchsorted(steps.start, notes.time.end, side="left") - 1
    ended = np.where(place >= 0, steps.time.end[np.maximum(place, 0)], np.iinfo(np.int64).min)
    return bool((ended <= notes.start).all())


def _alike(roles: RoledEvents) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yield the notes of a thread whose names differ in numbers only: that name, and where they are."""
    notes = roles.host_note
    codes, of_note = np.unique(notes.name, return_inverse=True)
    names = [roles.names[code] for code in codes.tolist()]
    stems = {stem: number for number, stem in enumerate(sorted({*map(_stem, names)}))}
    stem_of = np.array([stems[_stem(name)] for name in names], dtype=np.int64)
    kept = np.array([not _OF_LIBRARIES.match(name) for name in names], dtype=np.bool_)
    places = np.flatnonzero(kept[of_note]) if len(notes) else np.empty(0, dtype=np.intp)
    keys = np.column_stack([stem_of[of_note], notes.thread])[places]
    groups, of_place = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(of_place.reshape(-1), kind="stable")
    parts = np.split(places[order], np.cumsum(np.bincount(of_place.reshape(-1)))[:-1])
    in_order = list(stems)
    for (stem, _), own in zip(groups.tolist(), parts, strict=False):
        yield in_order[stem], own


def _stem(name: str) -> str:
    return _NUMBER.sub("#", name)


def _launches(roles: RoledEvents) -> IntArray:
    """Return when the host launched work of a device."""
    codes = np.array(sorted(roles.names_like(LAUNCH_CALLS)), dtype=np.int64)
    parts = (part.start[np.isin(part.name, codes)] for part in roles.launch.parts())
    return np.concatenate([np.empty(0, np.int64), *parts])


def _are_steps(notes: Events, extent: int, launches: IntArray) -> bool:
    """Return whether notes follow each other without an overlap and cover nearly all of a file, or its launches."""
    if len(notes) < 2 or (notes.start[1:] < notes.time.end[:-1]).any():
        return False
    whole = int(notes.time.end[-1] - notes.start[0])
    if 2 * whole < extent:
        return False
    if notes.dur.sum() >= _LEAST_COVER * whole:
        return True
    place = np.searchsorted(notes.start, launches, side="right") - 1
    is_in = (place >= 0) & (launches < notes.time.end[place])
    return bool(len(launches) >= len(notes) and is_in.mean() >= _LEAST_COVER)

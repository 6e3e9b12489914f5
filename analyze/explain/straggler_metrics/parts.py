"""A slowdown taken apart: what each operation type, replica and stage adds to a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from . import optypes as op
from .job import Job
from .scenarios import Choice, Labels, Replayer, Scenario, everything, nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What each part of the job adds to the ideal step time, as a ratio to it."""

    overall: dict[str | int, float]
    per_step: dict[str | int, FloatArray]
    """One value a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One slowdown, taken apart in three ways."""

    optype: Shares
    dp_rank: Shares
    stage: Shares


def parts_by_length(job: Job, replayer: Replayer, ideal_s: FloatArray) -> Parts:
    """Return what the recorded lengths of each part add to the ideal step times."""
    optypes = _optype_choices(job, replayer, first=False)
    return _parts(job, replayer, ideal_s, optypes, lambda choice: Scenario(own_length=choice))


def parts_by_delay(job: Job, replayer: Replayer, recorded_s: FloatArray) -> Parts:
    """Return what the launch delays of each part add to step times without delays."""
    optypes = _optype_choices(job, replayer, first=True)
    return _parts(
        job,
        replayer,
        recorded_s,
        optypes,
        lambda choice: Scenario(own_length=everything, delayed=choice),
    )


def _parts(
    job: Job,
    replayer: Replayer,
    reference_s: FloatArray,
    optypes: Mapping[str, Choice],
    scenario: Callable[[Choice], Scenario],
) -> Parts:
    """Return what each operation type, replica and stage adds to the reference.

    Args:
        job: The job.
        replayer: Its replays.
        reference_s: Step times with nothing added.
        optypes: The operation types under their published names.
        scenario: Makes the scenario in which the chosen operations add what was recorded.
    """
    stages = sorted({stage for _, stage in job.rank})
    choices: dict[tuple[str, str | int], Choice] = {
        **{("optype", name): choice for name, choice in optypes.items()},
        **{("dp_rank", n): partial(_of, "dp_rank", n) for n in job.dp_ranks.tolist()},
        **{("stage", n): partial(_of, "stage", n) for n in stages},
    }
    times = replayer.replay([scenario(choice) for choice in choices.values()]).finish_s
    shares = {kind: Shares(overall={}, per_step={}) for kind in ("optype", "dp_rank", "stage")}
    for (kind, name), finish in zip(choices, times, strict=True):
        shares[kind].overall[name] = float(finish.mean() / reference_s.mean())
        shares[kind].per_step[name] = finish / reference_s
    return Parts(**shares)


def _of(label: str, value: int, labels: Labels) -> BoolArray:
    return np.asarray(getattr(labels, label) == value)


def _optype_choices(job: Job, replayer: Replayer, *, first: bool) -> dict[str, Choice]:
    """Return the operation types under their published names, both ends of a transfer as one.

    Types that the file only declares are listed where none are merged, as the
    published tool does; nothing is added by them.

    Args:
        job: The job.
        replayer: Its replays.
        first: Bill the first operation of each worker apart.
    """
    present = {op.KNOWN[i] for labels in replayer.labels for i in np.unique(labels.optype)}
    billed: dict[str, list[int]] = {}
    for name in sorted(present):
        billed.setdefault(op.MERGED.get(name, name), []).append(op.KNOWN.index(name))
    of_types = _of_types_but_first if first else _of_types
    choices: dict[str, Choice] = {name: partial(of_types, types) for name, types in billed.items()}
    if first:
        choices[op.FIRST] = _first
    choices = {
        name: choice
        for name, choice in choices.items()
        if any(choice(labels).any() for labels in replayer.labels)
    }
    declared = [op.MERGED.get(name, name) for name in job.declared if name in op.KNOWN]
    if len(set(declared)) == len(declared):
        choices = dict.fromkeys((*declared, op.FIRST), nothing) | choices
    return choices


def _of_types(types: Sequence[int], labels: Labels) -> BoolArray:
    return np.isin(labels.optype, types)


def _of_types_but_first(types: Sequence[int], labels: Labels) -> BoolArray:
    return np.isin(labels.optype, types) & ~_first(labels)


def _first(labels: Labels) -> BoolArray:
    """Choose the first forward on the first stage, the first receive on the others."""
    forward, receive = op.KNOWN.index(op.FORWARD), op.KNOWN.index(op.FORWARD_RECV)
    kind = np.where(labels.stage == 0, forward, receive)
    return np.asarray((labels.optype == kind) & (labels.seq == 0))

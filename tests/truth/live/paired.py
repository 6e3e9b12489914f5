"""What a fault cost a live job, from its steps with and without it.

Neither the delay that was asked for nor the one that was slept enters: both can be
hidden by the schedule, or make others wait longer than they last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, inf, sqrt
from pathlib import Path
from statistics import fmean, stdev


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the job."""

    number: int
    length_ns: float
    """Averaged over the ranks, from the end of the step before."""
    is_active: bool
    """Whether the fault was on."""
    is_settled: bool
    """Whether the step before had the same; what a late rank costs the others can show a step
    later."""
    beside: tuple[bool, ...] = ()
    """Whether each of the other faults of the job was on."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of step times, and how sure it is."""

    cost_ns: float
    error_ns: float
    """Its standard error."""


def steps_of(
    truth_dir: Path,
    first: int,
    last: int,
    is_on: Callable[[int], bool] | None = None,
    others: Sequence[Callable[[int], bool]] = (),
) -> list[Step]:
    """Return the analysed steps, as all ranks wrote them down.

    Args:
        truth_dir: Where they did.
        first: The first of them.
        last: The last of them.
        is_on: In which steps the fault was on; None: in those that had any, as was written down.
        others: In which steps each of the others was on.
    """
    ends: dict[int, list[int]] = {}
    active: dict[int, bool] = {}
    for path in sorted(truth_dir.glob("ground_truth.rank*.jsonl")):
        for record in map(json.loads, path.read_text("utf-8").splitlines()):
            if record["record"] == "step":
                ends.setdefault(record["step"], []).append(record["end_ns"])
                active[record["step"]] = record["fault_active"]

    def states(step: int) -> tuple[bool, ...]:
        return (is_on(step) if is_on else active[step], *(other(step) for other in others))

    return [
        Step(
            number=number,
            length_ns=fmean(ends[number]) - fmean(ends[number - 1]),
            is_active=states(number)[0],
            is_settled=states(number) == states(number - 1),
            beside=states(number)[1:],
        )
        for number in range(first, last + 1)
    ]


def paired_cost(steps: Sequence[Step]) -> Difference:
    """Return what the fault costs an affected step.

    Steps with and without it come in blocks beside each other, so that both see the same
    drift of the machine. Beside other faults, steps are compared in which these are alike: what one
    hides of the other depends on both.

    Raises:
        ValueError: There are no such steps.

    >>> lengths = [160, 130, 131, 130, 100, 101, 102, 131]
    >>> active = [True, True, True, False, False, False, False, True]
    >>> settled = [False, True, True, False, True, True, True, False]
    >>> paired_cost(
    ...     [
    ...         Step(number=0, length_ns=n, is_active=a, is_settled=s)
    ...         for n, a, s in zip(lengths, active, settled)
    ...     ]
    ... ).cost_ns
    29.5
    """
    alike: dict[tuple[bool, ...], list[Step]] = {}
    for step in steps:
        alike.setdefault(step.beside, []).append(step)
    found, weights = [], []
    for group in alike.values():
        settled = [step for step in group if step.is_settled]
        with_it = [step for step in settled if step.is_active]
        without = [step for step in settled if not step.is_active]
        if with_it and without:
            found.append(difference(with_it, without))
            weights.append(sum(step.is_active for step in group))
    if not found:
        raise ValueError("no settled steps with and without the fault")
    whole = sum(weights)
    return Difference(
        cost_ns=sum(w * one.cost_ns for w, one in zip(weights, found, strict=True)) / whole,
        error_ns=hypot(*(w * one.error_ns for w, one in zip(weights, found, strict=True))) / whole,
    )


def difference(one: Sequence[Step], other: Sequence[Step]) -> Difference:
    """Return the difference of the mean lengths of two sets of steps.

    Of means, as the diagnosis tells them: a fault that costs more in some steps than in others, such as
    sequences of chance lengths, has another median. Other work on the machine scatters steps, which the error says.
    """
    lengths = [[step.length_ns for step in steps] for steps in (one, other)]
    return Difference(
        cost_ns=fmean(lengths[0]) - fmean(lengths[1]),
        error_ns=hypot(*map(error_of_mean, lengths)),
    )


def error_of_mean(sample: Sequence[float]) -> float:
    """Return the standard error of a sample's mean; infinite of a single value."""
    return stdev(sample) / sqrt(len(sample)) if len(sample) > 1 else inf

"""A run as a gate reads it: times of its settled steps, its classes by step, its counts, its setup.

The cut after warm-up is that of MSER-5 (White 1997; Franklin and White 2008): of batches of five steps, drop as many
from the front as make the standard error of the rest least. Batches are medians, so one stall moves
nothing. What is left drifts where its halves differ by more than ``DRIFT`` and by more than chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import TraceFormatError

from ..tables.arrays import FloatArray
from ..wording.limits import Limit, limit_texts
from ..wording.message import Message, message
from .facts import FORMAT, Baseline, Count, RunFacts, Window
from .interval import quantile

LEAST_STEPS = 5
"""Fewer steps make no median worth comparing."""
BATCH = 5
DRIFT = 0.005
"""Between the halves of a run; 46 of 396 published MLPerf runs drift by more."""
_SURE = 0.995
"""Two-sided 1 %: one of a hundred settled runs may be called drifting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Where a run has settled."""

    start: int
    """Index of the first step of the settled part."""
    drift_frac: float
    """Median of its second half over that of its first half, less one."""
    is_settled: bool
    """False where it drifts to its end."""


def settle(values: FloatArray) -> Settled:
    """Return where the step times of one run have settled.

    Args:
        values: Step times in the order of the steps; at least ``LEAST_STEPS``.
    """
    start = _cut(values) if len(values) >= 4 * BATCH else min(1, len(values) - LEAST_STEPS)
    rest = values[start:]
    drift, error = _drift(rest)
    drifts = abs(drift) > DRIFT and abs(drift) > error
    return Settled(start=start, drift_frac=drift, is_settled=not drifts)


def _cut(values: FloatArray) -> int:
    """Return how many steps MSER-5 drops; at most half of them."""
    batches = np.median(values[: len(values) // BATCH * BATCH].reshape(-1, BATCH), axis=1)
    count = len(batches)
    left = np.arange(count, 0, -1)
    sums, squares = (np.cumsum(part[::-1])[::-1] for part in (batches, batches**2))
    spread = np.maximum(squares / left - (sums / left) ** 2, 0.0)
    return BATCH * int(np.argmin((spread / left)[: count // 2 + 1]))


def _drift(values: FloatArray) -> tuple[float, float]:
    """Return the change from one half to the other, and how large chance makes it.

    The error is of batch medians, which are nearly independent where single steps are not.
    """
    half = len(values) // 2
    if half < 2 * BATCH:
        return 0.0, 0.0
    first, second = values[:half], values[len(values) - half :]
    before = float(np.median(first))
    drift = float(np.median(second)) / before - 1
    parts = [
        np.median(part[: half // BATCH * BATCH].reshape(-1, BATCH), axis=1) / before
        for part in (first, second)
    ]
    spread = sum(float(part.var(ddof=1)) / len(part) for part in parts)
    freedom = 2 * (half // BATCH) - 2
    return drift, quantile(_SURE, freedom) * sqrt(spread)


_TAIL = 0.99
"""A gate of 100 to 1,000 steps has some above it; farther out lie single events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """One run before the window of steps is chosen."""

    name: str
    step_ns: FloatArray
    """Step times in the order of the steps."""
    classes: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row a step, one column a class, ns, the mean over ranks; empty where only times are known."""
    stages: pd.DataFrame = field(default_factory=pd.DataFrame)
    """The same, one column a stage."""
    counts: dict[str, int] = field(default_factory=dict)
    """Per step, over all ranks."""
    setup: dict[str, str | int | float | None] = field(default_factory=dict)
    began_unix_ns: int | None = None
    """When it was launched."""
    ended: str = ""
    """How it broke off: who hung, died or was killed; empty where it ended in order, or somebody ended it."""
    limits: tuple[Limit, ...] = ()


def require_steps(run: LoadedRun, window: Window | None = None) -> None:
    """Refuse a run whose times are needed and too few.

    Raises:
        TraceFormatError: It has fewer than ``LEAST_STEPS`` steps, in the window if there is one.
    """
    if not has_times(run, window):
        what, remedy = _too_short(run, window)
        raise TraceFormatError(what, where=run.name, remedy=remedy)


def has_times(run: LoadedRun, window: Window | None = None) -> bool:
    """Return whether a run has steps enough for its times to be compared."""
    return len(run.step_ns) >= LEAST_STEPS + (window.first if window else 0)


def time_limits(runs: Sequence[LoadedRun], window: Window | None = None) -> list[Limit]:
    """Return why times of runs are not compared though their counts are, or over fewer steps."""
    limits: list[Limit] = []
    for run in runs:
        if not has_times(run, window):
            what, _ = _too_short(run, window)
            limits.append(message("missing.times_not_compared", run=run.name, what=what))
        elif window and len(run.step_ns) < window.first + window.count:
            own = len(run.step_ns) - window.first
            limits.append(
                message("missing.ends_early", run=run.name, own=own, compared=window.count)
            )
    return limits


def _too_short(run: LoadedRun, window: Window | None) -> tuple[Message, Message]:
    own = len(run.step_ns)
    if window and window.first and own >= LEAST_STEPS:
        last = window.first + window.count - 1
        what = message("refused.not_settled", own=own, first=window.first, last=last)
        return what, message("advice.longer_run", least=window.first + LEAST_STEPS)
    what = message("refused.too_few_steps", own=own, least=LEAST_STEPS)
    return what, message("advice.more_steps")


def window_of(runs: Sequence[LoadedRun]) -> Window:
    """Return the steps that are compared: from where half of the runs have settled, to the shortest end.

    All runs take the same steps: where a job becomes faster as it goes on, unlike steps would
    differ by more than a change does.
    """
    first = int(np.median([settle(run.step_ns).start for run in runs]))
    shortest = min(len(run.step_ns) for run in runs)
    first = min(first, max(0, shortest - LEAST_STEPS))
    return Window(first=first, count=shortest - first)


def facts_of(run: LoadedRun, window: Window) -> RunFacts:
    """Return one run reduced to the window; of one that ends early, to what it has of it."""
    part = slice(window.first, window.first + window.count)
    values = run.step_ns[part]
    rest = settle(values)
    return RunFacts(
        name=run.name,
        steps=len(values),
        p50_ns=_rounded(float(np.median(values))),
        p99_ns=_rounded(float(np.quantile(values, _TAIL))),
        drift_frac=0.0 if rest.is_settled else round(rest.drift_frac, 5),
        classes_ns=_means(run.classes.iloc[part]),
        stages_ns=_means(run.stages.iloc[part]),
    )


def baseline_of(runs: Sequence[LoadedRun]) -> Baseline:
    """Return the baseline of runs of one job; of counts alone where a run is too short for times.

    Raises:
        TraceFormatError: A run is too short, and not all have counts.
    """
    if not all(run.counts for run in runs):
        for run in runs:
            require_steps(run)
    is_timed = all(map(has_times, runs))
    window = window_of(runs) if is_timed else Window(first=0, count=0)
    facts = [facts_of(run, window) if is_timed else _untimed(run) for run in runs]
    limits = (*time_limits(runs), *(limit for run in runs for limit in run.limits))
    return Baseline(
        meshscope_gate_baseline=FORMAT,
        setup=dict(sorted(runs[0].setup.items())),
        window=window,
        runs=facts,
        counts=common_counts(runs),
        limits=limit_texts(limits),
    )


def common_counts(runs: Sequence[LoadedRun]) -> dict[str, Count]:
    """Return the least and the most of every count; what a run never did is 0."""
    counted = [run.counts for run in runs]
    if not all(counted):
        return {}
    names = sorted(set().union(*counted))
    values = {name: [counts.get(name, 0) for counts in counted] for name in names}
    return {name: (min(found), max(found)) for name, found in values.items()}


def _untimed(run: LoadedRun) -> RunFacts:
    return RunFacts(name=run.name, steps=0, p50_ns=0.0, p99_ns=0.0)


def _means(by_step: pd.DataFrame) -> dict[str, float]:
    means = by_step.mean() if len(by_step) else pd.Series(dtype=float)
    return {str(name): _rounded(float(value)) for name, value in means.items() if value > 0}


def _rounded(value: float) -> float:
    """Return ns with a tenth: finer is no measurement, and makes a file nobody reads."""
    return round(value, 1)

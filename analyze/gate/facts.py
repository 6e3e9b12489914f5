"""What a gate compares: one run reduced to a few numbers, and a baseline of several runs.

These are also the contents of a baseline file, so they are small and hold no times of single steps.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ..tables.arrays import FloatArray

FORMAT = 1

Count = tuple[int, int]
"""The least and the most of a count per step over the runs; equal where it never varied."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that are compared, counted from the first step of a run: like steps with like."""

    first: int
    count: int


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a baseline or a candidate; times in ns, per step."""

    name: str
    steps: int
    """How many steps of the window the run has."""
    p50_ns: float
    p99_ns: float
    drift_frac: float = 0.0
    """By how much it still drifts in the window; 0 where it has settled."""
    classes_ns: dict[str, float] = {}
    """Classes of the ledger, the mean over ranks and steps of the window."""
    stages_ns: dict[str, float] = {}
    """Time in passes and optimizer by stage, the same mean."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one job, and what is exact of them."""

    meshscope_gate_baseline: int
    """Version of the format."""
    setup: dict[str, str | int | float | None] = {}
    """The fingerprint: what has to be equal for a comparison to mean anything."""
    window: Window
    runs: list[RunFacts]
    counts: dict[str, Count] = {}
    """What was done in a step, over all ranks: ``collectives.tp.all_reduce`` …"""
    limits: list[str] = []

    @property
    def has_times(self) -> bool:
        """Return whether step times are known; else only counts are."""
        return all(run.p50_ns > 0 for run in self.runs)

    def logs(self) -> FloatArray:
        """Return the logarithm of the step time of every run; none where times are not known."""
        return np.log([run.p50_ns for run in self.runs if self.has_times])

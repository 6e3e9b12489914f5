"""Where the time of a step went before and after: by class of the ledger, and by pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .facts import RunFacts
from .results import Moved

_LEAST = 1e-3
"""Share of the step below which a class has no row of its own."""
REST = "rest"
"""The row of all smaller classes."""


def class_rows(base: Sequence[RunFacts], candidate: Sequence[RunFacts]) -> tuple[Moved, ...]:
    """Return each class, ns before and after: means over steps, ranks and runs; small ones in one row."""
    if not candidate or not all(run.classes_ns for run in (*base, *candidate)):
        return ()
    names = dict.fromkeys(name for run in (*base, *candidate) for name in run.classes_ns)
    rows = [_moved(name, "classes_ns", base, candidate) for name in names]
    least = _LEAST * sum(row.before_ns for row in rows)
    large = [row for row in rows if max(row.before_ns, row.after_ns) >= least]
    small = [row for row in rows if max(row.before_ns, row.after_ns) < least]
    if small:
        before, after = (
            sum(getattr(row, name) for row in small) for name in ("before_ns", "after_ns")
        )
        large.append(Moved(REST, before, after))
    return tuple(large)


def stage_rows(base: Sequence[RunFacts], candidate: Sequence[RunFacts]) -> tuple[Moved, ...]:
    """Return the compute of each stage, the largest change first."""
    if not candidate or not all(run.stages_ns for run in (*base, *candidate)):
        return ()
    rows = [_moved(name, "stages_ns", base, candidate) for name in base[0].stages_ns]
    return tuple(sorted(rows, key=lambda row: -abs(row.change_ns)))


def _moved(
    name: str, family: str, base: Sequence[RunFacts], candidate: Sequence[RunFacts]
) -> Moved:
    before, after = (
        float(np.mean([getattr(run, family).get(name, 0.0) for run in side]))
        for side in (base, candidate)
    )
    return Moved(name, before, after)

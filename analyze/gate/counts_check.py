"""Counts of a step against those of the baseline: exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .facts import Baseline, Count
from .results import Check, Reason, Verdict

PREFIX = "count."


def count_checks(baseline: Baseline, counts: Mapping[str, Count]) -> tuple[Check, ...]:
    """Return one check a count; none where a side has no counts."""
    if not baseline.counts or not counts:
        return ()
    return tuple(_checks(baseline.counts, counts))


def _checks(base: Mapping[str, Count], counts: Mapping[str, Count]) -> Iterator[Check]:
    for name in sorted({*base, *counts}):
        before, after = base.get(name, (0, 0)), counts.get(name, (0, 0))
        verdict, reason = _judge(name, before, after)
        yield Check(
            metric=PREFIX + name,
            verdict=verdict,
            reason=reason,
            ratio=after[1] / before[1] if before[1] else None,
            low=after[0] / before[1] if before[1] else None,
            high=after[1] / before[0] if before[0] else None,
            before=before[1],
            after=after[1] if after[1] > before[1] else after[0],
            margin_frac=0.0,
        )


def _judge(name: str, before: Count, after: Count) -> tuple[Verdict, Reason]:
    """Return the verdict on one count.

    A count that the baseline has a range of passes within it, and decides nothing beyond. Fewer passes
    are no gain but other work; fewer operations are one.
    """
    if before[0] <= after[0] and after[1] <= before[1]:
        return Verdict.PASS, Reason.EQUAL
    if before[0] != before[1] or after[0] != after[1]:
        return Verdict.INCONCLUSIVE, Reason.VARIES
    if after[0] > before[0]:
        return Verdict.FAIL, Reason.MORE
    return (Verdict.FAIL if name.startswith("passes.") else Verdict.IMPROVED), Reason.FEWER

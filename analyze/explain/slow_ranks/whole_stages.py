"""Ranks that are slow just as all their replicas are: the stage has more to do in these steps.

With two replicas neither rank is a witness of the other one, and each is found slow against its
own past. That both of them broke in the same steps is the less likely explanation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from meshscope.probe.schema.layout import ParallelLayout

from .results import DetectionResult
from .verdict import RankVerdict, calmed

MIN_ALIKE = 0.7
"""Least slow-down over the largest one of the replicas, and least part of all their slow steps that
each of them has."""


def without_whole_stages(result: DetectionResult, layout: ParallelLayout | None) -> DetectionResult:
    """Return the verdicts, with no rank blamed for what all its replicas show in the same steps.

    Args:
        result: The verdicts of all ranks.
        layout: The mesh; without one, or with one replica, nothing changes.
    """
    if layout is None or layout.dp < 2:
        return result
    replicas: dict[tuple[int, ...], list[RankVerdict]] = defaultdict(list)
    for verdict in result.verdicts:
        at = layout.coordinates(verdict.rank)
        replicas[tuple(at[axis] for axis in sorted(at) if axis != "dp")].append(verdict)
    alike = {own.rank for place in replicas.values() if _are_alike(place) for own in place}
    verdicts = [calmed(own) if own.rank in alike else own for own in result.verdicts]
    verdicts.sort(key=lambda own: not own.is_slow)
    return replace(result, verdicts=tuple(verdicts))


def _are_alike(place: Sequence[RankVerdict]) -> bool:
    """Return whether all of several ranks are slow at times, in the same steps and by as much."""
    slowdowns = [own.slowdown or 0.0 for own in place]
    if len(place) < 2 or not all(own.is_slow for own in place):
        return False
    steps = [
        {step for first, last in own.slow_steps for step in range(first, last + 1)} for own in place
    ]
    whole = set.union(*steps)
    in_same_steps = min(map(len, steps)) >= MIN_ALIKE * len(whole)
    return in_same_steps and min(slowdowns) >= MIN_ALIKE * max(slowdowns)

"""When everything of a job happens: an event graph in float seconds, all steps at once."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tests.truth.foreign.program import Item

Times = npt.NDArray[np.float64]
"""Seconds, by item of a stage, replica and step."""
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and end of every item, by stage."""

    starts: tuple[Times, ...]
    ends: tuple[Times, ...]

    def begins(self) -> Times:
        """Return the first start of each step."""
        return np.min([start[0].min(axis=0) for start in self.starts], axis=0)

    def step_s(self) -> Times:
        """Return the length of each step."""
        return np.max([end.max(axis=(0, 1)) for end in self.ends], axis=0) - self.begins()


def keys(item: Item, dp: int) -> list[Key]:
    """Return the meetings of an item in a replica."""
    return [tuple(dp if part == "dp" else part for part in meeting) for meeting in item.meetings]


def simulate(
    programs: Sequence[Sequence[Item]], gaps: Sequence[Times], lengths: Sequence[Times]
) -> Timeline:
    """Run the programs of all stages.

    An item begins a gap after the one before has ended. It ends its length after the last of all
    ranks that attend one of its meetings has begun, or after its own begin if it meets nobody.

    Raises:
        RuntimeError: Ranks wait for each other for ever.
    """
    starts = tuple(np.full_like(length, np.nan) for length in lengths)
    ends = tuple(np.full_like(length, np.nan) for length in lengths)
    replicas = range(lengths[0].shape[1])
    expected = Counter(
        key for items in programs for item in items for dp in replicas for key in keys(item, dp)
    )
    latest: dict[Key, Times] = {}
    waiting: dict[Key, list[tuple[int, int]]] = {}
    position = {(stage, dp): 0 for stage in range(len(programs)) for dp in replicas}
    ready = list(position)
    while ready:
        stage, dp = ready.pop()
        place = position[stage, dp]
        if place == len(programs[stage]):
            continue
        own = keys(programs[stage][place], dp)
        if np.isnan(starts[stage][place, dp, 0]):
            before = ends[stage][place - 1, dp] if place else 0.0
            begin = starts[stage][place, dp] = before + gaps[stage][place, dp]
            for key in own:
                latest[key] = np.maximum(latest.get(key, begin), begin)
                expected[key] -= 1
                waiting.setdefault(key, []).append((stage, dp))
                if not expected[key]:
                    ready += [rank for rank in waiting[key] if rank != (stage, dp)]
        if any(expected[key] for key in own):
            continue
        begin = np.max([latest[key] for key in own], axis=0) if own else starts[stage][place, dp]
        if np.isnan(ends[stage][place, dp, 0]):
            ends[stage][place, dp] = begin + lengths[stage][place, dp]
            position[stage, dp] += 1
            ready.append((stage, dp))
    if any(place < len(programs[stage]) for (stage, _), place in position.items()):
        raise RuntimeError("ranks of the simulated job wait for each other for ever")
    return Timeline(starts, ends)

"""Numbers of steps that differ between ranks, joined over pairs of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


def joined_shifts(start: int, offsets: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """Return what to add to the steps of each rank that offsets join to ``start``, which keeps its own.

    Args:
        start: A rank.
        offsets: Two ranks, and what the steps of the second need to agree with those of the first.
    """
    near: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for reference, rank, shift in offsets:
        near[reference].append((rank, shift))
        near[rank].append((reference, -shift))
    found, waiting = {start: 0}, [start]
    while waiting:
        rank = waiting.pop()
        for other, shift in near[rank]:
            if other not in found:
                found[other] = found[rank] + shift
                waiting.append(other)
    return found

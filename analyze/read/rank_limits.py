"""What files of single ranks do not hold, one sentence for all ranks that share it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from meshscope.probe.schema.listing import listed


def missing_ranks(ranks: Sequence[int], world_size: int, *, is_named: bool) -> Iterator[str]:
    """Yield whether ranks of the job are missing.

    Args:
        ranks: Those of which there is a file.
        world_size: As far as it is known.
        is_named: Whether a file names it; else it was taken from the ranks.
    """
    if not is_named:
        yield f"No file names the world size; it is taken to be {world_size}."
    elif len(ranks) < world_size:
        yield f"{len(ranks)} of {world_size} ranks are here: {listed(ranks)}."


def shared_notes(notes: Iterable[tuple[int, Iterable[str]]]) -> Iterator[str]:
    """Yield each note once, with the ranks that it holds for."""
    holders: dict[str, list[int]] = defaultdict(list)
    for rank, clauses in notes:
        for clause in clauses:
            holders[clause].append(rank)
    for clause, ranks in holders.items():
        yield f"Rank {listed(ranks)}: {clause}."

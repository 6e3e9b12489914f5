"""Limits from the files of an input: files that are left out, and what those of single ranks do not hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed

from ..wording.limits import Limit, meaning_of
from ..wording.message import Message, message

OF_RANKS = "of_ranks"
"""Sentence of a note on ranks, in the part of each meaning."""


def missing_ranks(ranks: Sequence[int], world_size: int, *, is_named: bool) -> Iterator[Limit]:
    """Yield whether ranks of the job are missing.

    Args:
        ranks: Those of which there is a file.
        world_size: As far as it is known.
        is_named: Whether a file names it; else it was taken from the ranks.
    """
    if not is_named:
        yield message("assumed.unnamed_world_size", ranks=world_size)
    elif len(ranks) < world_size:
        yield message("missing.ranks_here", here=len(ranks), ranks=world_size, named=listed(ranks))


def shared_notes(notes: Iterable[tuple[int, Iterable[Limit]]]) -> Iterator[Limit]:
    """Yield each note once, with the ranks that it holds for; it means what the note means."""
    alike: dict[str, Limit] = {}
    holders: dict[str, list[int]] = defaultdict(list)
    for rank, clauses in notes:
        for clause in clauses:
            alike.setdefault(str(clause), clause)
            holders[str(clause)].append(rank)
    for key, clause in alike.items():
        code = f"{meaning_of(clause)}.{OF_RANKS}"
        yield Message(code, {"ranks": holders[key], "what": clause})


def left_out_files(errors: Iterable[TraceFormatError]) -> list[Limit]:
    """Return one limit for each file that an error kept out."""
    return [message("missing.file_left_out", error=str(error)) for error in errors]

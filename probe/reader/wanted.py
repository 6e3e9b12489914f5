"""What is asked of a reader of runs. Whoever only asks need not load the readers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .rank_records import Sieve

COUNTED = ("span", "collective", "p2p", "communication_sum", "microbatch")
"""Records that need room: those of passes, their microbatches and communication."""
MOST_ROWS = 12_000_000
"""Records of passes and communication that are read of a run: an analysis takes 8 GB for them."""
MOST_ROWS_VARIABLE = "MESHSCOPE_MOST_ROWS"


class Wanted(NamedTuple):
    """What a reader asks for.

    Attributes:
        steps: First and last step, as they are numbered in the run; None for all. The records of
            others are left out only where not all have room.
        most_rows: Rows of passes and communication that have room, of all ranks together.
        on_bytes: Is told how many more bytes were read.
        ranks: Ranks that are read; None for all.
        sieves: What is kept of some parts as they are read, by their directories; of ``steps`` then.
        in_depth: Whether deep traces are read too: each is larger than all else of its rank.
    """

    steps: tuple[int, int] | None = None
    most_rows: int = MOST_ROWS
    on_bytes: Callable[[int], None] = lambda _: None
    ranks: Collection[int] | None = None
    sieves: Mapping[Path, Sieve] = MappingProxyType({})
    in_depth: bool = True


WANTED = Wanted()
"""As much as there is room for."""

"""A recorded rank stands for the ranks of its unit that are not recorded."""

from pathlib import Path

import pytest

from meshscope.analyze.align.lock_step import stood_for, unit_words
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.layout import ParallelLayout


def trace(ranks, **sizes):
    """Return a capture of some ranks of a mesh."""
    layout = ParallelLayout(**sizes)
    return Trace(path=Path("x"), run={}, layout=layout, ranks=tuple(ranks), tables={})


@pytest.mark.parametrize(
    ("ranks", "sizes", "rank", "others", "words"),
    [
        (range(0, 16, 2), {"pp": 4, "dp": 2, "cp": 2}, 4, (5,), "Rank 4 or a context-parallel peer (rank 5)"),
        (range(0, 16, 4), {"pp": 2, "dp": 2, "tp": 4}, 4, (5, 6, 7), "Rank 4 or a tensor-parallel peer (ranks 5, 6 and 7)"),
        (range(0, 8, 4), {"pp": 2, "tp": 2, "cp": 2}, 0, (1, 2, 3), "Rank 0 or a context-parallel and tensor-parallel peer (ranks 1, 2 and 3)"),
        # All are recorded: nobody stands for another.
        (range(8), {"pp": 2, "dp": 2, "tp": 2}, 4, (), "Rank 4"),
        # Replicas are no unit: a missing one has work of its own.
        (range(0, 4, 2), {"pp": 2, "dp": 2}, 0, (), "Rank 0"),
    ],
)  # fmt: skip
def test_who_a_rank_stands_for(ranks, sizes, rank, others, words):
    """The wrong device would be swapped, or none of a group be looked at."""
    capture = trace(ranks, **sizes)
    assert stood_for(capture, rank) == others
    assert str(unit_words(capture, rank)) == words

"""Ranks of which nobody knows where they were when a capture broke off."""

import pyarrow as pa

from meshscope.analyze.hangs.unheard import unheard_limit, unheard_ranks


def recording(*levels):
    """Return the table of a rank each, with its levels in turn."""
    rows = [
        {"rank": rank, "step": 50 * place, "level": level}
        for rank, own in enumerate(levels)
        for place, level in enumerate(own)
    ]
    types = [("rank", pa.int32()), ("step", pa.int64()), ("level", pa.string())]
    return pa.Table.from_pylist(rows[::-1], schema=pa.schema(types))


def test_the_last_level_decides():
    """A rank that is heard again would be left out for good, or one that fell silent believed."""
    assert unheard_ranks(
        recording(
            ["collectives"], ["collectives", "stages"], ["steps", "kernels"], ["stages", "steps"]
        )
    ) == {1, 3}
    assert unheard_ranks(recording([])) == frozenset()


def test_it_is_said_of_whom_nothing_is_known():
    """Nobody would look at a rank that may well be the one that stands still."""
    assert unheard_limit(recording(["kernels"])) == ()
    (limit,) = unheard_limit(recording(["kernels"], ["steps"], ["kernels"], ["stages"]))
    assert "communication of ranks 1 and 3 was not recorded" in limit

"""Ranks of which nobody knows where they were when a capture broke off."""

from tests.tables import trace_of

from meshscope.analyze.hangs.unheard import unheard_limit, unheard_ranks


def recording(*levels):
    """Return the table of a rank each, with its levels in turn."""
    rows = [
        {"rank": rank, "step": 50 * place, "level": level, "steps": 1, "dur_ns": 1}
        for rank, own in enumerate(levels)
        for place, level in enumerate(own)
    ]
    return trace_of(recording=rows[::-1]).frame("recording")


def test_the_last_level_decides():
    """A rank that is heard again would be left out for good, or one that fell silent believed."""
    assert unheard_ranks(
        recording(
            ["collectives"], ["collectives", "stages"], ["steps", "kernels"], ["stages", "steps"]
        )
    ) == {1, 3}
    assert unheard_ranks(trace_of().frame("recording")) == frozenset()


def test_it_is_said_of_whom_nothing_is_known():
    """Nobody would look at a rank that may well be the one that stands still."""
    assert unheard_limit(frozenset()) == ()
    (limit,) = unheard_limit(frozenset({3, 1}))
    assert "communication of ranks 1 and 3 was not recorded" in limit

"""Ranks of which nobody knows where they were when a capture broke off."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.hangs.unheard import unheard_limit, unheard_ranks


def tables(*levels, last_step=0, one_in=None):
    """Return those of a rank each, with its levels in turn and its last step."""
    recording = [
        {
            "rank": rank, "step": 50 * place, "level": level, "steps": 1, "dur_ns": 1,
            "one_in": one_in,
        }
        for rank, own in enumerate(levels)
        for place, level in enumerate(own)
    ]  # fmt: skip
    steps = [
        {"rank": rank, "step": step, "dur_ns": 1}
        for rank in range(len(levels))
        for step in range(last_step + 1)
    ]
    return trace_of(recording=recording[::-1], step=steps).tables


def test_the_last_level_decides():
    """A rank that is heard again would be left out for good, or one that fell silent believed."""
    levels = (
        ["collectives"], ["collectives", "stages"], ["steps", "kernels"], ["stages", "steps"]
    )  # fmt: skip
    assert unheard_ranks(tables(*levels)) == {1, 3}
    assert unheard_ranks({}) == frozenset()


@pytest.mark.parametrize(
    ("last_step", "unheard"), [(23, False), (24, True), (48, True), (49, False), (74, True)]
)
def test_of_windows_of_steps_the_last_one_decides(last_step, unheard):
    """The last collective of a window that was recorded would look like the place of a hang."""
    found = unheard_ranks(tables(["collectives"], last_step=last_step, one_in=2))
    assert found == ({0} if unheard else set())


def test_it_is_said_of_whom_nothing_is_known():
    """Nobody would look at a rank that may well be the one that stands still."""
    assert unheard_limit(tables(["kernels"])) == ()
    (limit,) = unheard_limit(tables(["kernels"], ["steps"], ["kernels"], ["stages"]))
    assert "communication of ranks 1 and 3 was not recorded" in limit

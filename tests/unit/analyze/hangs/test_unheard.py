"""Ranks of which nobody knows where they were when a capture broke off."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.hangs.unheard import (
    counted_collectives,
    unheard_limits,
    unheard_ranks,
)


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


def note(time_ns, **counts):
    """Return the manifest of a rank that noted what its backends had counted."""
    return {"annotations": {"standstill": {"time_ns": time_ns, "collectives": counts}}}


def test_what_backends_counted_in_the_last_step_tells_where_a_rank_was():
    """A job that hangs where nothing is recorded would have nobody who did not arrive."""
    steps = tables(*[["stages"]] * 4, last_step=9)["step"]
    manifests = {0: note(50, g=7, h=1), 1: note(0, g=9), 2: {}, 3: note(50, g=5)}
    found = counted_collectives(steps, manifests, frozenset({0, 1, 2}))
    assert found == {("g", 0): 6, ("h", 0): 0}


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"annotations": None},
        {"annotations": {"standstill": []}},
        note("x", g=1),
        {"annotations": {"standstill": {"time_ns": 9, "collectives": [1]}}},
        note(9, g="7"),
    ],
)
def test_a_damaged_note_tells_nothing(bad):
    """A torn manifest would end the diagnosis of a hang."""
    steps = tables(["stages"], last_step=0)["step"]
    assert counted_collectives(steps, {0: bad}, frozenset({0})) == {}


def test_it_is_said_of_whom_how_much_is_known():
    """Nobody would look at a rank that may well be the one that stands still."""
    assert unheard_limits(tables(["kernels"])) == ()
    found = tables(["kernels"], ["steps"], ["kernels"], ["stages"])
    progress = [
        {"rank": 1, "issued_seq": 4, "completed_seq": None},
        {"rank": 3, "issued_seq": None, "completed_seq": None},
    ]
    counted, unknown = unheard_limits(found | trace_of(progress=progress).tables)
    assert "communication of rank 1 was not recorded" in counted
    assert "counts of the backends" in counted
    assert "communication of rank 3 was not recorded" in unknown
    assert "not known" in unknown

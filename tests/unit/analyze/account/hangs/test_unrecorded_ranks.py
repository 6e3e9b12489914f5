"""Ranks of which nobody knows where they were when a capture broke off."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.hangs.hang import wait_graph
from meshscope.analyze.account.hangs.unrecorded_ranks import (
    counted_collectives,
    lost_ranks,
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
    ("last_step", "unheard"),
    [
        (3, False),
        (4, True),
        (8, True),
        (9, False),
        (74, True),
        (93, True),
        (94, False),
        (119, True),
    ],
)
def test_of_windows_of_steps_the_last_one_decides(last_step, unheard):
    """The last collective of a window that was recorded would look like the place of a hang."""
    found = unheard_ranks(tables(["collectives"], last_step=last_step, one_in=2))
    assert found == ({0} if unheard else set())


def test_windows_go_by_the_steps_of_the_newest_attempt():
    """A restarted job that hangs would be judged by records of a window long before."""
    found = tables(["collectives"], last_step=99, one_in=2)
    again = trace_of(attempt=[{"attempt": 1, "first_step": 0}, {"attempt": 2, "first_step": 85}])
    assert unheard_ranks(found) == frozenset()
    assert unheard_ranks(found | again.tables) == {0}


def note(time_ns, **counts):
    """Return the manifest of a rank that noted what its backends had counted."""
    return {"annotations": {"standstill": {"time_ns": time_ns, "collectives": counts}}}


def counted(manifests, unheard, *, groups=("g", "h"), **more):
    """Return what is known of ranks that noted, in groups of ranks 0 to 2."""
    group = [{"rank": 0, "group_id": name, "ranks": [0, 1, 2]} for name in groups]
    found = tables(*[["stages"]] * 4, last_step=9) | trace_of(group=group, **more).tables
    return counted_collectives(found, manifests, frozenset(unheard))


def test_what_backends_counted_in_the_last_step_tells_where_a_rank_was():
    """A job that hangs where nothing is recorded would have nobody who did not arrive."""
    manifests = {0: note(50, g=7, h=1), 1: note(0, g=9), 2: {}, 3: note(50, g=5)}
    assert counted(manifests, {0, 1, 2}) == {("g", 0): 6, ("h", 0): 0}
    assert counted(manifests, set()) == {}


def test_counts_are_not_held_against_the_numbers_of_records():
    """A rank that is recorded would look far ahead of those that are not, or far behind."""
    manifests = dict.fromkeys(range(4), note(50, g=7))
    assert counted(manifests, {0, 1, 2}) != {}
    assert counted(manifests, {0, 1}) == {}


def test_counts_with_messages_among_them_tell_nothing():
    """In a pipeline each rank counts its own messages too, and the first stage would look behind."""
    manifests = dict.fromkeys(range(4), note(50, g=7, h=3))
    kept = {("h", rank): 2 for rank in range(3)}
    message = {"peer": 1, "direction": "send", "start_ns": 0, "end_ns": 1}
    assert counted(manifests, {0, 1, 2}, p2p=[message]) == kept
    for direction in ("send", "recv"):
        sums = [{"group_id": "g", "operation": direction}]
        assert counted(manifests, {0, 1, 2}, communication_sum=sums) == kept
    collectives = [{"group_id": "g", "operation": "all_reduce"}]
    assert ("g", 1) in counted(manifests, {0, 1, 2}, communication_sum=collectives)


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
    assert counted({0: bad}, {0}) == {}


def test_it_is_said_of_whom_how_much_is_known():
    """Nobody would look at a rank that may well be the one that stands still."""
    assert unheard_limits(tables(["kernels"])) == ()
    found = tables(["kernels"], ["steps"], ["kernels"], ["stages"])
    progress = [
        {"rank": 1, "issued_seq": 4, "completed_seq": None},
        {"rank": 3, "issued_seq": None, "completed_seq": None},
    ]
    counted, unknown = map(str, unheard_limits(found | trace_of(progress=progress).tables))
    assert "Communication of rank 1 was not recorded" in counted
    assert "backend counters" in counted
    assert "Communication of rank 3 was not recorded" in unknown
    assert "unknown" in unknown


SECOND = 10**9


def unheard(issued, alive_s):
    """Return a capture of which no rank was recorded at the end: counts by group, last signs of life."""
    ranks = tuple(range(len(alive_s)))
    return trace_of(
        ranks=ranks,
        recording=[
            {"rank": rank, "step": 0, "level": "steps", "steps": 1, "dur_ns": 1} for rank in ranks
        ],
        step=[{"rank": rank, "dur_ns": 1} for rank in ranks],
        group=[{"group_id": group, "ranks": list(ranks)} for group in issued],
        progress=[
            {"rank": rank, "group_id": group, "issued_seq": count, "alive_ns": int(alive * SECOND)}
            for group, counts in issued.items()
            for rank, (count, alive) in enumerate(zip(counts, alive_s, strict=True))
        ],
    )


@pytest.mark.parametrize(
    ("issued", "alive_s", "lost", "absent"),
    [
        # Stopped while rank 0 is one behind rank 2, because it waits too.
        ({"a": [52, None, 53]}, [20, 8, 20], {1}, (1,)),
        ({"a": [51, 51, None]}, [20, 20, 8], {2}, (2,)),
        # Alive: a rank that left no note is not known to stand still.
        ({"a": [52, None, 53]}, [20, 19, 20], set(), (0,)),
        # In which of two groups the others wait is not known.
        ({"a": [51, 51, None], "b": [7, 7, None]}, [20, 20, 8], {2}, None),
    ],
)
def test_others_wait_for_a_rank_without_a_sign_of_life(issued, alive_s, lost, absent):
    """A stopped process would go unnamed, and one that waits for it be blamed in its place."""
    trace = unheard(issued, alive_s)
    assert lost_ranks(trace) == lost
    graph = wait_graph(trace)
    assert (graph and graph.absent) == absent

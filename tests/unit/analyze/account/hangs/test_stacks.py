"""What ranks were in when their job came to a standstill."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.hangs.stacks import (
    away_from_call,
    different_calls,
    meeting,
    stack_messages,
    standing_at_the_end,
    waits_for_others,
)

OWN = ["load", "/job/data.py", 33]
MAIN = ["main", "/job/train.py", 90]
WAIT = ["Work.wait", "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", 7]
STEPS = trace_of(step=[{"rank": 0, "dur_ns": 10}, {"rank": 1, "dur_ns": 40}]).tables["step"]


def note(*stack, time_ns=50, **facts):
    """Return the manifest of a rank that noted these functions, the innermost first."""
    found = {"time_ns": time_ns, "stack": list(stack), "collectives": {}, "goes_on": False, **facts}
    return {"annotations": {"standstill": found}}


def words(manifests, ranks, most=4):
    """Return what is said of ranks."""
    trace = trace_of(step=[{"dur_ns": 1}])
    trace = trace.with_tables({"standing": standing_at_the_end(STEPS, manifests)})
    return list(map(str, stack_messages(trace, ranks, most=most)))


def test_the_innermost_function_is_reported_with_those_of_the_program():
    """A user would see the depths of a library, and not what called it."""
    others = [["f", "/usr/lib/python3/x.py", 1], ["g", "<frozen runpy>", 1]]
    found = words({0: note(WAIT, *others, OWN, MAIN)}, [0])
    assert found == [
        "Rank 0 hung in Work.wait (c10d.py:7), called by load (data.py:33) and main (train.py:90)"
    ]
    assert words({0: note(OWN)}, [0]) == ["Rank 0 hung in load (data.py:33)"]


def test_a_rank_at_work_has_no_line():
    """The line of a moment would be taken for where a rank stands."""
    (found,) = words({0: note(OWN, MAIN, goes_on=True)}, [0])
    assert found == "Rank 0 kept running in load (data.py), called by main (train.py:90)"


def test_where_fewest_ranks_stood_comes_first():
    """The one that holds up a thousand others would be told last, or not at all."""
    manifests = {rank: note(WAIT, MAIN) for rank in range(6)} | {4: note(OWN, MAIN)}
    assert words(manifests, range(6), most=1) == [
        "Rank 4 hung in load (data.py:33), called by main (train.py:90)"
    ]
    second = words(manifests, range(6))[1]
    assert second.startswith("Ranks 0, 1, 2, 3 and 5 hung in Work.wait")
    assert words(manifests, [5]) == [second.replace("Ranks 0, 1, 2, 3 and 5", "Rank 5")]
    assert words(manifests, [9]) == []


def test_a_note_of_an_earlier_step_tells_nothing():
    """A rank that went on would be told to stand where it once stood."""
    manifests = {0: note(OWN, time_ns=30), 1: note(OWN, time_ns=30)}
    assert words(manifests, [0, 1]) == ["Rank 0 hung in load (data.py:33)"]


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"annotations": None},
        {"annotations": {"standstill": 3}},
        note(time_ns="x"),
        note(time_ns=1 << 70),
        note(stack=None),
        note(["f"], OWN),
        note(
            ["f"],
            ["f", 3, 4],
            ["f", "a.py", -1],
            ["f", "a.py", 1 << 40],
            ["f", "a.py", True],
            {"f": 1},
            None,
        ),
    ],
)
def test_a_damaged_note_tells_nothing(bad):
    """A torn manifest would end the diagnosis of a hang."""
    assert words({0: bad}, [0]) == []


def last(*stack, moment):
    """Return the manifest of a rank that noted where it was when the job ended."""
    found = {"time_ns": 70, "moment": moment, "stack": list(stack)}
    return {"annotations": {"last_stack": found}}


def both(one, other):
    """Return one manifest with the notes of two."""
    return {"annotations": one["annotations"] | other["annotations"]}


def test_where_a_signal_came_is_said_unless_the_rank_had_waited_there():
    """Fails when a crash has no line, or a rank that a watchdog ended is said to have crashed where it waited."""
    unqualified = ["wait", *WAIT[1:]]
    crashed = last(OWN, MAIN, moment="fatal_signal")
    assert words({0: crashed}, [0]) == [
        "Rank 0, when the signal came: in load (data.py:33), called by main (train.py:90)"
    ]
    aborted = both(note(WAIT, MAIN), last(unqualified, MAIN, moment="fatal_signal"))
    assert words({0: aborted}, [0])[0].startswith("Rank 0 hung in Work.wait")
    went_on = both(note(WAIT, MAIN), last(OWN, MAIN, moment="fatal_signal"))
    assert words({0: went_on}, [0])[0].startswith("Rank 0, when the signal came: in load")


def test_an_error_from_where_a_rank_had_waited_ended_its_wait():
    """Fails when the text of an error decides alone, and a rank that gave up waiting is called the culprit."""
    gave_up = both(note(WAIT, MAIN), last(WAIT, MAIN, moment="raised"))
    failed = both(note(OWN, MAIN), last(OWN, MAIN, moment="raised"))
    rows = standing_at_the_end(STEPS, {0: gave_up, 1: failed}).to_pandas()
    moments = rows[rows["depth"] == 0].set_index("rank")["moment"].astype(str)
    assert moments.to_dict() == {0: "timed_out", 1: "raised"}


def test_where_ctrl_c_came_is_said_unless_the_rank_had_stood_for_long():
    """Fails when a job that somebody ended after some seconds shows no line of the rank that held it up."""
    interrupted = last(OWN, MAIN, moment="interrupted")
    assert words({0: interrupted}, [0]) == [
        "Rank 0, when Ctrl-C came: in load (data.py:33), called by main (train.py:90)"
    ]
    assert words({0: both(note(WAIT, MAIN), interrupted)}, [0])[0].startswith(
        "Rank 0 hung in Work.wait"
    )


def test_who_kept_running_is_shown_where_it_was_last():
    """Fails when a rank that went on from its compilation to a hang is shown where it compiled."""
    ran = note(MAIN, goes_on=True)
    interrupted = last(OWN, MAIN, moment="interrupted")
    assert words({0: both(ran, interrupted)}, [0]) == [
        "Rank 0, when Ctrl-C came: in load (data.py:33), called by main (train.py:90)"
    ]


def test_hostile_names_are_shown_as_text():
    """A function could write to the terminal of whoever looks at it."""
    (found,) = words({0: note(["\x1b[2Jf" * 500, "a" * 5000 + ".py", 1])}, [0])
    assert "\x1b" not in found
    assert len(found) < 700


def met(manifests, ranks=(0, 1, 2)):
    """Return where ranks waited for the others to make a group."""
    trace = trace_of(ranks=ranks, step=[{"dur_ns": 1}])
    return meeting(trace.with_tables({"standing": standing_at_the_end(STEPS, manifests)}))


JOIN = ["helper", "/v/site-packages/torch/distributed/distributed_c10d.py", 9]
JOINS = [JOIN, ["init_process_group", JOIN[1], 8], MAIN]


def test_who_did_not_come_to_make_the_group_is_named():
    """Fails when a job that hangs in init_process_group shows three stacks and leaves it to the reader."""
    found = met({0: note(*JOINS), 1: note(OWN, MAIN), 2: note(*JOINS)})
    assert found == ("init_process_group", (0, 2), (1,))


def test_where_all_wait_or_a_stack_is_unknown_nobody_is_named():
    """Fails when a slow rendezvous blames a rank of which nothing is known."""
    assert met({0: note(*JOINS), 1: note(*JOINS), 2: note(*JOINS)}) is None
    assert met({0: note(*JOINS), 1: note(OWN, MAIN)}) is None
    assert met({0: note(OWN), 1: note(OWN), 2: note(OWN)}) is None


TORCH = "/venv/lib/python3.11/site-packages/torch/"
BARRIER = ["barrier", f"{TORCH}distributed/distributed_c10d.py", 5]
REDUCE = ["all_reduce", f"{TORCH}distributed/distributed_c10d.py", 3]
RECEIVE = ["recv", f"{TORCH}distributed/distributed_c10d.py", 9]
BACKWARD = ["_engine_run_backward", f"{TORCH}autograd/graph.py", 979]
SAVE = ["save", f"{TORCH}serialization.py", 9]


def standing(*stacks, groups=1):
    """Return a capture in which ranks stand in these functions, None without a note."""
    manifests = {rank: note(*own) for rank, own in enumerate(stacks) if own is not None}
    ranks = tuple(range(len(stacks)))
    trace = trace_of(
        ranks=ranks, group=[{"group_id": f"g{n}", "ranks": list(ranks)} for n in range(groups)]
    )
    return trace.with_tables({"standing": standing_at_the_end(STEPS, manifests)})


@pytest.mark.parametrize(
    ("stacks", "lost", "absent"),
    [
        ([[SAVE, MAIN], [BARRIER, MAIN], [BARRIER, MAIN]], (), (0,)),
        ([None, [BARRIER, MAIN], [BARRIER, MAIN]], (0,), (0,)),
        ([[OWN, MAIN], [BARRIER, MAIN], [BACKWARD, MAIN]], (), (0,)),
        ([None, [BARRIER, MAIN], [BARRIER, MAIN]], (), None),
        ([[SAVE, MAIN], [BARRIER, MAIN], [REDUCE, MAIN]], (), None),
        ([[BARRIER, MAIN], [BARRIER, MAIN]], (), None),
        ([[OWN, MAIN], [BACKWARD, MAIN], [BACKWARD, MAIN]], (), (0,)),
        ([[BACKWARD, MAIN], [BACKWARD, MAIN]], (), None),
    ],
)
def test_who_is_not_in_the_call_of_the_others_did_not_come(stacks, lost, absent):
    """The first whose wait timed out would be named, or a rank of which nothing is known."""
    found = away_from_call(standing(*stacks), lost)
    assert (found and found.absent) == absent


@pytest.mark.parametrize(
    ("stacks", "groups", "calls"),
    [
        ([[REDUCE], [BARRIER], [REDUCE]], 1, [("barrier", (1,)), ("all_reduce", (0, 2))]),
        ([[REDUCE], [REDUCE], [REDUCE]], 1, []),
        ([[REDUCE], [BARRIER], [REDUCE]], 2, []),
        ([[REDUCE], [RECEIVE], [REDUCE]], 1, []),
        ([[REDUCE], [OWN], [BARRIER]], 1, []),
    ],
)
def test_all_ranks_of_the_only_group_stand_in_different_calls(stacks, groups, calls):
    """A branch that calls another operation on one rank would stay unsaid, or two groups be taken for one."""
    found = different_calls(standing(*stacks, groups=groups))
    assert [(one.function, one.waiting) for one in found] == calls


def test_where_ranks_wait_for_others_is_told_from_their_own_work():
    """A rank whose checkpoint failed would be said to have given up waiting."""
    assert waits_for_others(standing([BARRIER], [BACKWARD], [SAVE], [OWN])) == {0, 1}

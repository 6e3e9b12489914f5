"""What a place of the timeline is, in words."""

from meshscope.dashboard.answers.instant import sentences

WAIT = {
    "rank": 1,
    "text": "all-reduce over DP",
    "dur_ns": 3_000_000,
    "start_ns": 1_000_000,
    "end_ns": 4_000_000,
    "operation": None,
    "operation_unknown_because": None,
}
OPERATION = {
    "kind": "all_reduce",
    "axis": "dp",
    "group_id": "g",
    "size_bytes": None,
    "ranks": tuple(range(20)),
    "waited_ns": 2_000_000.0,
    "wire_ns": 1_000_000.0,
    "waited_for": 7,
}


def test_a_wait_says_for_whom():
    """Fails when a reader has to look for the rank that all waited for."""
    assert sentences({**WAIT, "operation": OPERATION}) == [
        "All-reduce over DP.",
        "Takes 3 ms, from 1 ms to 4 ms of the step.",
        "All-reduce over DP, group g, size unknown.",
        "20 recorded members: 0, 1, 2, 3, 4, 5, 6, 7 and 12 more.",
        "Waited 2 ms; the transfer took 1 ms.",
        "Rank 7 came last.",
    ]


def test_what_is_not_known_is_said_with_its_reason():
    """Fails when an unknown wait looks like none."""
    because = {**WAIT, "operation_unknown_because": "this step is not analysed"}
    last = "Whom it waited for is not known: this step is not analysed."
    assert sentences(because)[-1] == last
    unseen = {**OPERATION, "waited_ns": None, "wire_ns": None}
    reported = sentences({**WAIT, "operation": unseen})
    assert reported[-1] == "How much of it is waiting is not known: its end was not seen."


def test_outside_of_the_rows_nothing_is_said():
    """Fails when a click beside the figure breaks the page, or tells of a rank."""
    assert sentences({**WAIT, "rank": None}) == []
    assert sentences({**WAIT, "text": None}) == ["Nothing was recorded here."]

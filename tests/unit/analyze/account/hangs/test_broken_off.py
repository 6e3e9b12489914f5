"""How far the ranks of a killed run of ours came."""

from tests.tables import trace_of

from meshscope.analyze.account.hangs.broken_off import progress_at_the_end
from meshscope.probe.reader.rank_records import LastSeen
from meshscope.probe.schema.tables import TABLES

CLOSED, KILLED = {"closed_unix_ns": 5}, {"closed_unix_ns": None}
FAILED = {"closed_unix_ns": 5, "ended_by": "RuntimeError"}


def table(
    rows, manifests, ranks=(0, 1), seen=None, summed=frozenset(), sent=(), unheard=frozenset()
):
    """Return the table; a row is rank, group, number and, if it was seen, the end.

    A send has rank and group.
    """
    group = [{"group_id": name, "ranks": list(ranks)} for name in ("a", "b")]
    collective = [
        {"rank": rank, "group_id": name, "seq": seq, "start_ns": 0, "end_ns": (*end, None)[0]}
        for rank, name, seq, *end in rows
    ]
    p2p = [
        {
            "rank": rank,
            "peer": 1 - rank,
            "group_id": name,
            "seq": 0,
            "start_ns": 0,
            "direction": "send",
        }
        for rank, name in sent
    ]
    recording = [{"rank": rank, "level": "stages", "steps": 1, "dur_ns": 1} for rank in unheard]
    sums = [{"rank": 0, "group_id": name} for name in sorted(summed)]
    tables = trace_of(
        group=group, collective=collective, p2p=p2p, recording=recording, communication_sum=sums
    ).tables
    captured = {name: spec.empty() for name, spec in TABLES.items()} | tables
    found = progress_at_the_end(captured, manifests, seen or {})
    return found.to_pylist()


def progress(rows, manifests, ranks=(0, 1), summed=frozenset()):
    """Return issued and completed numbers by rank and group."""
    return {
        (row["rank"], row["group_id"]): (row["issued_seq"], row["completed_seq"])
        for row in table(rows, manifests, ranks, summed=summed)
    }


def test_a_run_that_ended_in_order_has_none():
    """Healthy runs would be searched for hangs."""
    assert progress([(0, "a", 4), (1, "a", 3)], {0: CLOSED, 1: CLOSED}) == {}


def test_a_rank_that_never_communicated_has_the_times_of_its_process():
    """Fails when a job that stood still, or lost a rank, before its first collective says nothing of it."""
    seen = {0: LastSeen(alive_ns=70, ended_ns=80, wait_status=9), 1: LastSeen(alive_ns=75)}
    found = table([], {0: KILLED, 1: CLOSED}, (0, 1), seen=seen)
    assert [row["group_id"] for row in found] == ["", ""]
    assert [(row["issued_seq"], row["completed_seq"]) for row in found] == [
        (None, None),
        (None, -1),
    ]
    assert [(row["alive_ns"], row["wait_status"]) for row in found] == [(70, 9), (75, None)]


def test_the_last_number_of_each_rank_and_group():
    """A rank would look behind, or ahead, of where it was."""
    rows = [(0, "a", 3), (0, "a", 4), (1, "a", 3), (0, "b", 1), (1, "b", 2)]
    found = progress(rows, {0: KILLED, 1: CLOSED})
    assert found == {
        (0, "a"): (4, None),
        (1, "a"): (3, 3),
        (0, "b"): (1, None),
        (1, "b"): (2, 1),
    }


def test_an_exception_of_a_rank_that_waited_does_not_complete_its_collective():
    """A hang would go unseen because the others gave up and closed their captures."""
    assert progress([(0, "a", 4), (1, "a", 5)], {0: KILLED, 1: CLOSED})[1, "a"] == (5, 4)
    assert progress([(0, "a", 4), (1, "a", 5, 9)], {0: KILLED, 1: CLOSED})[1, "a"] == (5, 5)
    assert progress([(0, "a", 4), (1, "a", 3)], {0: KILLED, 1: CLOSED})[1, "a"] == (3, 3)


def test_a_job_whose_ranks_all_ended_by_exceptions_broke_off():
    """A hang that a time limit or Ctrl-C ended on all ranks would go unseen."""
    rows = table([(0, "a", 4), (1, "a", 3)], {0: FAILED, 1: FAILED})
    found = {
        row["rank"]: (row["issued_seq"], row["completed_seq"], row["ended_by"]) for row in rows
    }
    assert found == {0: (4, None, "RuntimeError"), 1: (3, None, "RuntimeError")}


def test_ranks_that_only_send_and_receive_have_come_somewhere_too():
    """A pipeline without collectives that came to a standstill would have no account of it."""
    found = table([], {0: KILLED, 1: CLOSED}, sent=[(0, "b")])
    assert [(row["rank"], row["group_id"], row["issued_seq"]) for row in found] == [
        (0, "b", -1),
        (1, "b", -1),
    ]


def test_the_ends_of_the_processes_are_with_it():
    """Who died first could not be distinguished from who was ended for it."""
    rows = table(
        [(0, "a", 4), (1, "a", 3)],
        {0: KILLED, 1: KILLED},
        seen={0: LastSeen(70, None), 1: LastSeen(40, 50)},
    )
    found = {row["rank"]: (row["alive_ns"], row["ended_ns"]) for row in rows}
    assert found == {0: (70, None), 1: (40, 50)}


def test_a_member_without_rows_is_behind_only_where_nothing_can_be_lost():
    """A rank whose old records were dropped would be blamed, or one that never came be missed."""
    found = progress([(0, "a", 0), (0, "b", 8), (0, "b", 9)], {0: KILLED, 1: KILLED}, (0, 1, 2))
    assert found == {(0, "a"): (0, None), (1, "a"): (-1, None), (0, "b"): (9, None)}


def test_a_group_whose_earlier_collectives_were_summed_names_nobody_as_absent():
    """A member would be said never to have come, because its steps were kept as sums."""
    rows, killed = [(0, "a", 7)], {0: KILLED, 1: KILLED}
    assert (1, "a") in progress(rows, killed)
    assert progress(rows, killed, summed=frozenset({"a"})) == {
        (0, "a"): (7, None),
        (1, ""): (None, None),
    }


def test_what_was_not_recorded_is_unknown_and_holds_up_nobody():
    """A rank that recorded less would look as if it had stopped there, and crash unseen."""
    rows = [(0, "a", 9), (1, "a", 3), (2, "a", 9)]
    manifests = {0: CLOSED, 1: KILLED, 2: KILLED}
    seen = {1: LastSeen(alive_ns=7, ended_ns=8)}
    found = {row["rank"]: row for row in table(rows, manifests, (0, 1, 2), seen, unheard={1})}
    assert found[1]["issued_seq"] is None
    assert (found[1]["alive_ns"], found[1]["ended_ns"]) == (7, 8)
    assert found[0]["completed_seq"] == 9


def test_a_hang_stays_one_after_ctrl_c_and_sys_exit():
    """Fails when a program that catches Ctrl-C and calls sys.exit(130) makes its hang an end in order."""
    seen = {rank: LastSeen(ended_ns=90, wait_status=130 << 8) for rank in (0, 1)}
    found = table([(0, "a", 4), (1, "a", 3, 50)], {0: CLOSED, 1: CLOSED}, seen=seen)
    assert [(row["rank"], row["ended_by"], row["completed_seq"]) for row in found] == [
        (0, "SystemExit", None),
        (1, "SystemExit", None),
    ]
    in_order = {rank: LastSeen(ended_ns=90, wait_status=0) for rank in (0, 1)}
    assert table([(0, "a", 4), (1, "a", 3)], {0: CLOSED, 1: CLOSED}, seen=in_order) == []

"""Transfers whose two ends gave different sizes or types: both ends are named, and no link."""

import pyarrow as pa
import pytest
from tests.tables import trace_of

from meshscope.analyze.account.hangs.unequal_transfers import unequal_transfers
from meshscope.analyze.findings.rules.hang import hang_findings
from meshscope.probe.schema.summary_tables import CALL_PLACE


def broken_off(sent, expected, *, through=()):
    """Return a job of two ranks that agree on transfer 0, and then on transfer 1 or not.

    Args:
        sent: Bytes and type of transfer 1 as rank 0 sends it.
        expected: The same as rank 1 expects it.
        through: The ranks on which transfer 1 had ended.
    """
    rows = [
        {
            "rank": rank, "peer": 1 - rank, "direction": "recv" if rank else "send", "group_id": "a",
            "seq": seq, "event_id": seq, "size_bytes": size, "dtype": dtype, "source": "imported",
            "issue_ns": 1000 * seq, "start_ns": 1000 * seq,
            "end_ns": 1000 * seq + 9 if seq == 0 or rank in through else None,
        }
        for rank, own in enumerate((sent, expected))
        for seq, (size, dtype) in enumerate([(64, "Float"), own])
    ]  # fmt: skip
    progress = [
        {"rank": rank, "group_id": "a", "issued_seq": 0, "completed_seq": 0} for rank in (0, 1)
    ]
    groups = [{"group_id": "a", "ranks": [0, 1]}]
    return trace_of(ranks=(0, 1), group=groups, progress=progress, p2p=rows)


@pytest.mark.parametrize(
    ("sent", "expected", "words"),
    [
        ((6400, "Float"), (6000, "Float"), "Rank 0 sends 6,400 bytes to rank 1"),
        ((640, "Half"), (640, "Float"), "Rank 0 sends Half to rank 1"),
    ],
)
def test_both_ends_of_a_transfer_that_differs_are_named(sent, expected, words):
    """Fails when a shorter last microbatch reads as a transfer that is stuck on its link."""
    (finding,) = hang_findings(broken_off(sent, expected))
    assert (finding.where["ranks"], finding.cause) == ([0, 1], "mismatch_transfer")
    assert words in str(finding.claim)
    assert "recv" in str(finding.evidence[1])


@pytest.mark.parametrize(
    ("sent", "expected", "is_through"),
    [
        ((64, "Float"), (64, "Float"), False),
        ((0, None), (64, "Float"), False),
        ((80, "Float"), (64, "Float"), True),
    ],
    ids=["equal", "unknown", "it ended"],
)
def test_equal_unknown_or_ended_transfers_are_no_mismatch(sent, expected, is_through):
    """Fails when an unknown size, or records that lost a transfer, accuse two ranks."""
    assert unequal_transfers(broken_off(sent, expected, through=(0, 1) if is_through else ())) == []


def ends(*rows, absent=(), ranks=(0, 1, 2), calls=()):
    """Return a dump of open sends and receives: rank, direction, peer and number of each.

    Args:
        rows: The transfers, all of one group.
        absent: Ranks that are behind in a collective in which the others wait.
        ranks: Those with a dump.
        calls: Rows of ``transfer_call``.
    """
    p2p = [
        {
            "rank": rank, "direction": direction, "peer": peer, "seq": seq, "group_id": "a", "event_id": at,
            "size_bytes": 0 if calls else 64, "dtype": None if calls else "Float", "source": "imported",
            "issue_ns": 1000 * at, "start_ns": 1000 * at, "end_ns": None,
        }
        for at, (rank, direction, peer, seq) in enumerate(rows)
    ]  # fmt: skip
    waiting = [rank for rank in range(4) if rank not in absent] if absent else []
    collective = [
        {"rank": rank, "group_id": "b", "seq": 5, "event_id": 100, "source": "host_issue",
         "issue_ns": 9000, "start_ns": 9000, "end_ns": None}
        for rank in waiting
    ]  # fmt: skip
    progress = [
        {
            "rank": rank,
            "group_id": "b",
            "issued_seq": 5 if rank in waiting else 4,
            "completed_seq": 4,
        }
        for rank in ranks
    ]
    groups = [{"group_id": name, "ranks": [0, 1, 2, 3] if absent else [0, 1, 2]} for name in "ab"]
    return trace_of(
        origin="flight_recorder", ranks=ranks, group=groups, progress=progress, p2p=p2p,
        collective=collective, transfer_call=list(calls),
    )  # fmt: skip


CROSSED = ((1, "send", 2, 0), (2, "recv", 0, 0))


def test_a_send_to_a_rank_that_receives_from_another_names_both():
    """Fails when a rank that nobody should wait for is said not to have arrived."""
    (finding,) = hang_findings(ends(*CROSSED))
    assert (finding.where["ranks"], finding.cause) == ([1, 2], "mismatch_peer")
    words = "Rank 1 sends to rank 2 on group a, but rank 2 receives from rank 0"
    assert str(finding.claim) == words
    assert "Rank 0 has sent nothing to rank 2 in this capture" in map(str, finding.evidence)


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        ((*CROSSED, (0, "send", 2, 1)), {}),
        ((*CROSSED, (2, "recv", 1, 0)), {}),
        (CROSSED, {"absent": (3,), "ranks": (0, 1, 2, 3)}),
        (CROSSED, {"ranks": (1, 2)}),
        (((2, "recv", 0, 0),), {}),
    ],
    ids=["it sends at times", "also received", "another is away", "no capture", "no send"],
)
def test_transfers_that_wait_for_their_turn_are_not_crossed(rows, more):
    """Fails when ranks that wait behind one that did not arrive are blamed in its place."""
    assert "mismatch_peer" not in {found.cause for found in hang_findings(ends(*rows, **more))}


def test_ends_of_unknown_types_are_compared_by_their_elements():
    """Fails when dumps of old versions, which keep no types, hide that two ends differ."""
    places = ["train (a.py:3)", None]
    calls = [
        {"rank": at, "event_id": at, "elements": count, "place": places[at]}
        for at, count in enumerate((1600, 1500))
    ]
    (finding,) = hang_findings(ends((0, "send", 1, 0), (1, "recv", 0, 0), calls=calls))
    assert (finding.where["ranks"], finding.cause) == ([0, 1], "mismatch_transfer")
    assert "Rank 0 sends 1,600 elements to rank 1" in str(finding.claim)
    assert "where 1,500 are expected" in str(finding.claim)
    assert [str(one) for one in finding.evidence] == [
        "Rank 0: send of 1,600 elements, at train (a.py:3)",
        "Rank 1: recv of 1,500 elements",
    ]


def test_a_sender_that_went_on_is_named_with_the_receiver():
    """Fails when a receiver that the backend ended for its size is said to have died first."""
    trace = broken_off((8000, "Float"), (4000, "Float"), through=(0,))
    (finding,) = hang_findings(trace)
    assert (finding.where["ranks"], finding.cause) == ([0, 1], "mismatch_transfer")
    assert "8,000 bytes" in str(finding.claim)
    assert "PYTHONFAULTHANDLER=1" in str(finding.evidence[-1])


@pytest.mark.parametrize(
    ("begun", "causes"), [(7, ["mismatch_transfer"]), (6, [])], ids=["aligned", "shifted"]
)
def test_a_difference_that_ended_does_not_hide_a_later_open_one(begun, causes):
    """Fails when a shorter message that went through hides the one that the job stands in, or shifted numbers accuse."""
    sizes = {"send": (64, 64, 64, 96), "recv": (80, 64, 64, 48)}
    rows = [
        {
            "rank": rank, "peer": 1 - rank, "direction": direction, "group_id": "a", "seq": seq, "event_id": seq,
            "step": 5 if seq < 2 else 7 if direction == "send" or seq == 3 else begun, "size_bytes": size,
            "dtype": "float32", "source": "host_issue", "issue_ns": 1000 * seq, "start_ns": 1000 * seq,
            "end_ns": 1000 * seq + 9 if seq < 3 else None,
        }
        for rank, (direction, own) in enumerate(sizes.items())
        for seq, size in enumerate(own)
    ]  # fmt: skip
    progress = [
        {"rank": rank, "group_id": "a", "issued_seq": 0, "completed_seq": None} for rank in (0, 1)
    ]
    groups = [{"group_id": "a", "ranks": [0, 1]}]
    place = {"group_id": "a", "dtype": "float32", "function": "f", "file": "t.py"}
    places = [
        {**place, "rank": 0, "kind": "send", "peer": 1, "size_bytes": 96, "line": 8},
        {**place, "rank": 1, "kind": "recv", "peer": 0, "size_bytes": 48, "line": 9},
    ]
    trace = trace_of(ranks=(0, 1), group=groups, progress=progress, p2p=rows)
    trace.tables["call_place"] = CALL_PLACE.conform(pa.Table.from_pylist(places))
    found = [one for one in hang_findings(trace) if one.cause == "mismatch_transfer"]
    assert [one.cause for one in found] == causes
    if causes:
        assert [str(one) for one in found[0].evidence[:2]] == [
            "Rank 0: send of 96 bytes (float32), first at t.py:8 in f",
            "Rank 1: recv of 48 bytes (float32), first at t.py:9 in f",
        ]

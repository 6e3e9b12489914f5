"""Transfers whose two ends gave different sizes or types: both ends are named, and no link."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.hangs.unequal_transfers import unequal_transfers
from meshscope.analyze.findings.rules.hang import hang_findings


def broken_off(sent, expected, *, is_through=False):
    """Return a job of two ranks that agree on transfer 0, and then on transfer 1 or not.

    Args:
        sent: Bytes and type of transfer 1 as rank 0 sends it.
        expected: The same as rank 1 expects it.
        is_through: Whether transfer 1 had ended.
    """
    rows = [
        {
            "rank": rank, "peer": 1 - rank, "direction": "recv" if rank else "send", "group_id": "a",
            "seq": seq, "event_id": seq, "size_bytes": size, "dtype": dtype, "source": "imported",
            "issue_ns": 1000 * seq, "start_ns": 1000 * seq,
            "end_ns": 1000 * seq + 9 if seq == 0 or is_through else None,
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
    assert unequal_transfers(broken_off(sent, expected, is_through=is_through)) == []

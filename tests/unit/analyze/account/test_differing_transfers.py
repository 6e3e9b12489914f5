"""Messages whose ends differ and that arrived: told by sizes that no order of the messages explains."""

from tests.tables import trace_of

from meshscope.analyze.account.differing_transfers import differing_transfers


def job(sent, received, *, steps=4, first=0):
    """Return messages of rank 0 to rank 1: sizes and types of a step at both ends."""
    p2p = []
    for rank, ends in enumerate((sent, received)):
        seq = first if rank else 0
        for step in range(steps):
            for size, dtype in ends:
                p2p.append(
                    {
                        "rank": rank, "step": step, "group_id": "a", "peer": 1 - rank, "seq": seq,
                        "direction": "recv" if rank else "send", "event_id": seq, "size_bytes": size,
                        "dtype": dtype, "source": "host_issue", "issue_ns": seq, "start_ns": seq,
                        "end_ns": seq + 9,
                    }
                )  # fmt: skip
                seq += 1
    groups = [{"group_id": "a", "ranks": [0, 1]}]
    return trace_of(origin="meshscope", ranks=(0, 1), group=groups, p2p=p2p)


SMALL, LARGE = (2000, "float32"), (4000, "float32")


def test_a_longer_buffer_is_named_with_both_sizes():
    """Fails when half of a received buffer is old and nobody is told."""
    (found,) = differing_transfers(job([SMALL, SMALL], [SMALL, LARGE]))
    assert (found.source, found.target, found.messages, found.steps) == (0, 1, 4, 4)
    assert (found.sent.size_bytes, found.expected.size_bytes) == (2000, 4000)
    assert (found.first_step, found.seq) == (0, 1)


def test_bytes_of_another_type_are_named():
    """Fails when floats are received as integers and nobody is told."""
    (found,) = differing_transfers(job([SMALL], [(2000, "int32")]))
    assert (found.sent.dtype, found.expected.dtype) == ("float32", "int32")


def test_messages_with_tags_may_be_received_in_another_order():
    """Fails when two messages that cross, each with its own tag, are called wrong."""
    assert differing_transfers(job([SMALL, LARGE], [LARGE, SMALL])) == []


def test_ends_that_count_from_different_numbers_are_not_compared():
    """Fails when an end that was recorded later is said to differ in all messages."""
    assert differing_transfers(job([SMALL, LARGE], [SMALL, LARGE], first=1)) == []


def test_unequal_numbers_in_a_step_prove_nothing():
    """Fails when records that one end lacks make the rest differ."""
    assert differing_transfers(job([SMALL, LARGE, SMALL], [LARGE, SMALL])) == []

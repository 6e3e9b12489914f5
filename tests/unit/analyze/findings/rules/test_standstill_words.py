"""How findings about a standstill name many ranks: each thing once."""

from tests.tables import trace_of

from meshscope.analyze.account.hangs.hang import wait_graph
from meshscope.analyze.findings.rules.standstill_words import waited_for


def job(issued):
    """Return a dump in which ranks have issued so many operations of a group of all, the last of which is open."""
    collective, progress = [], []
    for rank, count in issued.items():
        for seq in range(count):
            end = None if seq == count - 1 else seq + 1
            collective.append(
                {"rank": rank, "group_id": "a", "seq": seq, "kind": "all_reduce", "start_ns": seq, "end_ns": end}
            )  # fmt: skip
        progress.append(
            {"rank": rank, "group_id": "a", "issued_seq": count - 1, "completed_seq": count - 2}
        )
    groups = [{"group_id": "a", "ranks": list(range(8))}]
    return trace_of(
        origin="flight_recorder", ranks=tuple(issued), group=groups, progress=progress,
        collective=collective,
    )  # fmt: skip


def test_ranks_that_are_waited_for_alike_share_a_sentence():
    """Fails when a dump of two of 512 ranks repeats one sentence for each of those that are missing."""
    trace = job({0: 9, 5: 9})
    graph = wait_graph(trace)
    (said,) = waited_for(trace, graph, graph.uncaptured)
    assert (said.values["waiting"], said.values["absent"]) == ([0, 5], [1, 2, 3, 4, 6, 7])


def test_ranks_that_came_to_different_numbers_do_not():
    """Fails when what a rank had issued last is said of another one."""
    trace = job({0: 9, 1: 8, 2: 6, 3: 8, 4: 9, 5: 9, 6: 9, 7: 9})
    graph = wait_graph(trace)
    said = [
        (one.values["absent"], one.values["last"]) for one in waited_for(trace, graph, (1, 2, 3))
    ]
    assert said == [([1, 3], 7), ([2], 5)]

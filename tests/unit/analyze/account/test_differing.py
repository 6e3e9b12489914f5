"""Operations that ended although their members differ: who, in what, how often; never a rank whose count is off."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.differing import differing_collectives

STEPS = 6
USUAL = [
    ("all_reduce", 4000, "float32"),
    ("broadcast", 64, "float32"),
    ("all_gather", 800, "int64"),
]


def job(
    change=lambda rank, step, issues: issues,
    *,
    ranks=4,
    lost=(),
    steps=STEPS,
    first=None,
    progress=(),
):
    """Return a job of which each rank issues the usual three operations a step, as changed; some records are lost."""
    collective = []
    for rank in range(ranks):
        seq = (first or {}).get(rank, 0)
        for step in range(steps):
            for kind, size, dtype in change(rank, step, list(USUAL)):
                if (rank, seq) not in lost:
                    collective.append(
                        {
                            "rank": rank, "step": step, "group_id": "a", "seq": seq, "event_id": seq,
                            "kind": kind, "size_bytes": size, "dtype": dtype, "source": "host_issue",
                            "issue_ns": seq * 1000, "start_ns": seq * 1000, "end_ns": seq * 1000 + 9,
                        }
                    )  # fmt: skip
                seq += 1
    groups = [{"group_id": "a", "ranks": list(range(ranks))}]
    return trace_of(
        origin="meshscope",
        ranks=tuple(range(ranks)),
        group=groups,
        collective=collective,
        progress=list(progress),
    )


def on(rank, at, place, issue):
    """Return a change: one rank issues another thing at one place of some steps."""

    def change(own, step, issues):
        if own == rank and step in at:
            issues[place] = issue
        return issues

    return change


@pytest.mark.parametrize(
    ("place", "issue", "what"),
    [
        (0, ("all_reduce", 8000, "float32"), "size"),
        (0, ("all_reduce", 4000, "int32"), "dtype"),
        (1, ("reduce", 64, "float32"), "kind"),
        (1, ("broadcast", 128, "float32"), "size"),
    ],
)
def test_who_differs_in_what_and_how_often(place, issue, what):
    """Fails when a wrong result that hung nobody is not said, or is said once for each step."""
    (found,), shifted = differing_collectives(job(on(2, (2, 4, 5), place, issue)))
    assert (list(found.different), found.usual_ranks, found.what) == ([2], (0, 1, 3), what)
    assert (found.operations, found.steps, found.first_step) == (3, 3, 2)
    assert found.seq == 6 + place
    assert (found.different[2].size_bytes, found.different[2].dtype) == issue[1:]
    assert not shifted


def test_of_two_members_both_are_named():
    """Fails when one of two ranks is called wrong by a coin."""
    (found,), _ = differing_collectives(job(on(1, (3,), 0, ("all_reduce", 8, "float32")), ranks=2))
    assert (list(found.different), found.usual_ranks) == ([0, 1], ())


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_member_that_gives_or_gets_another_size_differs(kind):
    """Fails when a gather into buffers of another length, of which the rest keeps what was there, is not said."""

    def change(rank, step, issues):
        return [(kind, 200 if rank == 2 and step == 3 else 400, "float32"), *issues]

    (found,), _ = differing_collectives(job(change))
    assert (list(found.different), found.what, found.first_step) == ([2], "size", 3)


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather", "reduce_scatter", "other"])
def test_sizes_that_may_differ_do_not_count(kind):
    """Fails when uneven splits, or lists of uneven tensors, are called wrong."""

    def change(rank, step, issues):
        return [(kind, 100 * rank + step, "float32"), *issues]

    assert differing_collectives(job(change)) == ([], [])


def test_sparse_tensors_have_sizes_of_their_own():
    """Fails when the gradients of a sparse embedding, of other rows on each rank, are called wrong."""

    def change(rank, step, issues):
        return [*issues, ("all_reduce", 100 * rank + step, "sparse_float32")]

    assert differing_collectives(job(change)) == ([], [])


def test_types_that_are_not_known_do_not_differ():
    """Fails when an operation without a tensor on some rank counts as one of another type."""
    assert differing_collectives(job(on(1, (2,), 0, ("all_reduce", 4000, None)))) == ([], [])


@pytest.mark.parametrize("shift", [1, 2, 1000])
def test_a_rank_that_counts_from_another_number_differs_in_nothing(shift):
    """Fails when a rank that was attached late is said to differ in all operations."""
    assert differing_collectives(job(first={1: shift})) == ([], [])


def test_lost_records_leave_nothing_to_compare_in_their_step():
    """Fails when numbers with a gap are compared: what each of them was is not proven there."""
    trace = job(on(2, (2, 4), 0, ("all_reduce", 8, "float32")), lost={(0, 7)})
    (found,), _ = differing_collectives(trace)
    assert (found.operations, found.first_step) == (1, 4)


@pytest.mark.parametrize(("more", "own"), [(True, 4), (False, 2)])
def test_one_operation_more_or_less_is_said_once(more, own):
    """Fails when all that follows a skipped operation is called different, or the skipped one is not said."""

    def change(rank, step, issues):
        if rank == 3 and step == 2:
            return [("barrier", 0, None), *issues] if more else issues[1:]
        return issues

    found, (shifted,) = differing_collectives(job(change))
    assert not found
    assert (shifted.rank, shifted.step, shifted.own, shifted.usual) == (3, 2, own, 3)


def test_an_operation_that_fell_into_the_next_step_is_no_shift():
    """Fails when a thread that was late once is said to have left an operation out."""

    def change(rank, step, issues):
        if rank == 3 and step == 2:
            return issues[:-1]
        return [USUAL[2], *issues] if rank == 3 and step == 3 else issues

    assert differing_collectives(job(change)) == ([], [])


def test_what_is_still_open_belongs_to_the_rule_of_hangs():
    """Fails when the operation that a job hangs in is said to have ended."""
    trace = job(
        on(2, (5,), 2, ("all_gather", 800, "int32")),
        progress=[
            {"rank": rank, "group_id": "a", "issued_seq": 17, "completed_seq": 16}
            for rank in range(4)
        ],
    )
    rows = trace.tables["collective"].to_pylist()
    for row in rows:
        row["end_ns"] = None if row["seq"] == 17 else row["end_ns"]
    open_ones = trace_of(
        origin="meshscope",
        ranks=(0, 1, 2, 3),
        group=trace.tables["group"].to_pylist(),
        collective=rows,
        progress=trace.tables["progress"].to_pylist(),
    )
    assert differing_collectives(open_ones) == ([], [])


def test_what_differs_in_several_things_is_told_for_each():
    """Fails when names and sizes cannot be compared side by side, or one difference hides the other."""
    first, second = (
        on(2, (1, 3), 0, ("reduce", 4000, "float32")),
        on(1, (2,), 1, ("broadcast", 8, "float32")),
    )
    found, _ = differing_collectives(job(lambda *issued: second(*issued[:2], first(*issued))))
    told = {(one.what, *one.different): one.operations for one in found}
    assert told == {("kind", 2): 2, ("size", 1): 1}

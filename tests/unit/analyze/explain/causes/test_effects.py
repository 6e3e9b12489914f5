"""Work of ranks against their peers, on a job with known work."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, capture_of, programs
from tests.tables import trace_of

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.causes.effects import (
    Expected,
    among_healthy,
    excess_by_rank,
    peer_centre,
    place_work,
    stage_of_ranks,
)
from meshscope.analyze.explain.causes.peer_classes import kinds_of_ranks
from meshscope.analyze.explain.replay.program import build_program
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

LAYOUT = ParallelLayout(pp=2, dp=4)


def placed_work(work):
    """Return the work of a job of 3 analysed steps of 2 microbatches by cell."""
    trace = capture(Job(layout=LAYOUT, microbatches=2, steps=4), work)
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    ledger = build_ledger(trace, windows, events)
    return place_work(trace, build_program(windows, events, ledger), ledger)


def table_of(work):
    """Return the excess of every rank of such a job."""
    placed = placed_work(work)
    return excess_by_rank(placed, peer_centre(placed)).set_index("rank")


def test_excess_is_the_extra_work_per_step():
    """The cost of a slow rank would be off by the number of steps or microbatches."""
    table = table_of(lambda kind, rank, step, microbatch: (14 if rank == 5 else 10) * MS)
    assert table["excess_ns"].tolist() == pytest.approx([0, 0, 0, 0, 0, 16 * MS, 0, 0])
    assert table["slowdown"][5] == pytest.approx((4 * 14 + 2) / (4 * 10 + 2))
    assert table["z"].idxmax() == 5


def test_peers_are_the_ranks_of_the_same_stage():
    """A heavy stage would make all its ranks stragglers."""
    table = table_of(lambda kind, rank, step, microbatch: (30 if rank >= 4 else 10) * MS)
    assert table["peers"].tolist() == [3] * 8
    assert table["excess_ns"].abs().max() == pytest.approx(0)


def test_a_slow_rank_is_not_in_its_own_centre():
    """A centre that contains the fault understates it."""
    two = ParallelLayout(dp=2)
    trace = capture(Job(layout=two, steps=4), lambda k, rank, s, m: (20 + 10 * rank) * MS)
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    ledger = build_ledger(trace, windows, events)
    placed = place_work(trace, build_program(windows, events, ledger), ledger)
    table = excess_by_rank(placed, peer_centre(placed)).set_index("rank")
    assert table["excess_ns"].tolist() == pytest.approx([-80 * MS, 80 * MS])


def test_without_a_mesh_ranks_of_another_model_are_no_peers():
    """Fails when ranks that generate are slow against those that judge, of a model of another size."""
    job = Job(layout=ParallelLayout(tp=2, dp=2), steps=4)
    trace = capture(job, lambda kind, rank, step, microbatch: (30 if rank % 2 else 10) * MS)
    rows = trace.tables["collective"].to_pylist()
    for row in rows:
        row["size_bytes"] = 4096 + 512 * (row["rank"] % 2 and row["group_id"].startswith("dp"))
    collective = TABLES["collective"].conform(pa.Table.from_pylist(rows))
    trace = replace(trace.with_tables({"collective": collective}), layout=None)
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    ledger = build_ledger(trace, windows, events)
    program = build_program(windows, events, ledger)
    placed = place_work(trace, program, ledger)
    assert kinds_of_ranks(program) == {0: 0, 1: 1, 2: 0, 3: 1}
    table = excess_by_rank(placed, peer_centre(placed)).set_index("rank")
    assert table["peers"].tolist() == [1] * 4
    assert table["excess_ns"].abs().max() == pytest.approx(0)


def test_stage_is_the_pipeline_coordinate():
    """Ranks would be compared across stages where data parallelism varies slowest."""
    layout = ParallelLayout(pp=2, dp=2, order="dp-pp-cp-tp")
    assert stage_of_ranks(trace_of(layout=layout), [0, 1, 2, 3]) == {0: 0, 1: 1, 2: 0, 3: 1}
    assert stage_of_ranks(trace_of(), [0, 5]) == {0: -1, 5: -1}


def test_a_step_unlike_that_of_all_peers_is_compared_with_none():
    """Fails when a rank that repeats a part of a step is slow for it, or the step is not reported."""
    job = Job(layout=ParallelLayout(dp=2), microbatches=1, steps=5)
    operations = programs(job, lambda kind, rank, step, microbatch: 10 * MS)
    again = next(op for op in operations[1] if op[0] == "collective" and op[1] == 3)
    place = operations[1].index(again)
    own = (*again[:2], ("own", (1,)), *again[3:])
    operations[1][place:place] = [("work", 30 * MS, 3, "forward", 0, 1), own]
    trace = capture_of(job, operations)
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    ledger = build_ledger(trace, windows, events)
    placed = place_work(trace, build_program(windows, events, ledger), ledger)
    by_step = placed.cells.groupby(["rank", "step"])["peer_class"].first()
    assert placed.deviating == 1
    assert by_step[1, 3] == -1
    assert by_step[0].nunique() == 1
    table = excess_by_rank(placed, peer_centre(placed)).set_index("rank")
    assert table["excess_ns"].tolist() == pytest.approx([0, 0])


@pytest.mark.parametrize("swapped", [{3}, {1, 3}, {1, 2, 3, 4}])
def test_ranks_that_issue_the_same_in_another_order_are_peers(swapped):
    """Fails when a slow rank has no peer in steps whose order differs, and its stage is heavy for it."""
    job = Job(layout=ParallelLayout(dp=2), microbatches=1, steps=5)
    work = [(20 + 10 * rank) * MS for rank in range(2)]
    operations = []
    for rank in range(2):
        rows = []
        for step in range(5):
            kinds = ["all_reduce", "all_gather"]
            if rank and step in swapped:
                kinds.reverse()
            rows.append(("work", work[rank], step, "forward", 0, 0))
            rows += [("collective", step, (f"own-{rank}", (rank,)), "dp", k, 64, 10) for k in kinds]
            rows += [("collective", step, ("dp-0", (0, 1)), "dp", "reduce_scatter", 64, 10)]
            rows.append(("end", step, 64))
        operations.append(rows)
    trace = capture_of(job, operations)
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    ledger = build_ledger(trace, windows, events)
    placed = place_work(trace, build_program(windows, events, ledger), ledger)
    assert placed.deviating == 0
    assert placed.cells.groupby("step")["peer_class"].nunique().max() == 1
    table = excess_by_rank(placed, peer_centre(placed)).set_index("rank")
    assert table["excess_ns"].tolist() == pytest.approx([-10 * MS, 10 * MS])


def test_slow_peers_are_separated_only_where_there_are_two():
    """Fails when what a lone slow rank costs changes, or nobody is left to compare ranks with."""
    work = placed_work(lambda kind, rank, step, microbatch: (14 if rank < 3 else 10) * MS)
    peers = Expected(peer_centre(work), None)
    assert among_healthy(work, peers, [0, 5]) is peers
    reported = among_healthy(work, peers, [0, 1, 2])
    table = excess_by_rank(work, reported.work_ns).set_index("rank")
    assert table["excess_ns"].tolist()[:3] == pytest.approx([16 * MS] * 3)
    all_slow = among_healthy(work, peers, [0, 1, 2, 3])
    assert np.array_equal(all_slow.work_ns, peers.work_ns)

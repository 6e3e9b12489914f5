"""Steps of profilers that numbered them otherwise are paired by what proves it, or left as they are."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.align.communication.profiled_steps import with_paired_numbers
from meshscope.analyze.align.steps.same_step import renumbered
from meshscope.analyze.read import import_trace
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.tables import TABLES

ENDS = (1_000, 2_137, 3_391, 4_304, 5_655)
"""When the collective of each step of the job ends: no two steps are equally long."""


def job(numbers, *, first=(), clock_ns=(0, 0, 0), seqs=None, ends=ENDS, transfers=False):
    """Return ranks that reduce once a step, three times in all, in the five steps of a job.

    Args:
        numbers: What is added to the steps of each rank.
        first: Ranks that were recorded from the second step on.
        clock_ns: By how much the clock of each rank is ahead.
        seqs: First sequence number of each rank; counted from 0 on each if not given.
        ends: When the steps end.
        transfers: Send from each rank to the next instead.
    """
    steps, collectives, p2p = [], [], []
    for rank, add in enumerate(numbers):
        begun = 1 if rank in first else 0
        for at in range(begun, len(ends)):
            begin, end = (ends[at - 1] if at else 0, ends[at])
            time = {"start_ns": begin + clock_ns[rank], "dur_ns": end - begin}
            steps.append({"rank": rank, "step": at + add} | time)
            for nth in range(3):
                own = {"rank": rank, "step": at + add, "start_ns": begin + clock_ns[rank] + 10 * rank,
                       "end_ns": end - 100 * (3 - nth) + clock_ns[rank]}  # fmt: skip
                seq = 3 * (at - begun) + nth if seqs is None else seqs[rank] + 3 * at + nth
                if not transfers:
                    collectives.append({**own, "seq": seq, "size_bytes": 8})
                    continue
                for peer, direction in ((rank + 1, "send"), (rank - 1, "recv")):
                    if 0 <= peer < len(numbers):
                        p2p.append({**own, "seq": seq, "peer": peer, "direction": direction})
    group = [{"group_id": "g", "ranks": list(range(len(numbers)))}]
    return trace_of(
        origin="kineto", ranks=range(len(numbers)), step=steps, collective=collectives, p2p=p2p, group=group,
    )  # fmt: skip


def steps_of(trace: Trace, rank: int) -> list[int]:
    """Return the steps of a rank."""
    frame = trace.frame("step")
    return frame.loc[frame["rank"] == rank, "step"].tolist()


@pytest.mark.parametrize("transfers", [False, True], ids=["collectives", "transfers"])
def test_a_rank_that_counts_from_elsewhere_is_renumbered(transfers):
    """Fails when ranks seem to wait for others in steps that are all in the capture."""
    found = with_paired_numbers(job((4, 5, 4), transfers=transfers))
    assert [steps_of(found, rank) for rank in range(3)] == [[4, 5, 6, 7, 8]] * 3
    assert list(texts(found.limits)) == [
        "Ranks began to count their steps at different times: they are renumbered so that collectives agree "
        "(rank 1 by -1)"
    ]


def test_a_profiler_that_began_a_step_later_leaves_that_step_to_the_others():
    """Fails when its first step is compared with the first step of the others."""
    found = with_paired_numbers(job((4, 3, 4), first=(1,)))
    assert [steps_of(found, rank) for rank in (0, 1)] == [[4, 5, 6, 7, 8], [5, 6, 7, 8]]


def test_numbers_are_never_negative():
    """Fails when a renumbered step gets the number that stands for no step."""
    found = with_paired_numbers(job((0, 1, 1)))
    assert [steps_of(found, rank)[0] for rank in range(3)] == [1, 1, 1]
    found = with_paired_numbers(job((0, 0, 1), first=(0, 1)))
    assert min(steps_of(found, rank)[0] for rank in range(3)) >= 0


def test_one_step_of_each_rank_is_paired_by_when_it_ended():
    """Fails when a capture of one step, numbered otherwise on one rank, has no step in common."""
    found = with_paired_numbers(job((4, 5, 4), ends=ENDS[:1]))
    assert [steps_of(found, rank) for rank in range(3)] == [[4], [4], [4]]


def test_clocks_that_are_off_tell_it_by_what_keeps_its_distance():
    """Fails when a host whose clock is wrong is left with numbers that are wrong, too."""
    found = with_paired_numbers(job((4, 5, 4), clock_ns=(0, 70_000_000, 0)))
    assert steps_of(found, 1) == [4, 5, 6, 7, 8]


def test_sequence_numbers_of_the_job_tell_it_without_any_clock():
    """Fails when equally long steps on a wrong clock outweigh what the job itself numbered."""
    even = tuple(1_000 * (at + 1) for at in range(5))
    off = job((4, 5, 4), clock_ns=(0, 70_000, 0), seqs=(30, 30, 30), ends=even)
    assert steps_of(with_paired_numbers(off), 1) == [4, 5, 6, 7, 8]


def test_nothing_moves_without_evidence():
    """Fails when a wrong clock alone, or a rank that did something else, renumbers steps."""
    even = tuple(1_000 * (at + 1) for at in range(5))
    off = job((4, 4, 4), clock_ns=(0, 70_450, 0), ends=even)
    assert with_paired_numbers(off) is off
    apart = job((4, 5, 4))
    rows = apart.frame("collective")
    other = rows.assign(size_bytes=np.where(rows["rank"] == 1, 16, rows["size_bytes"]))
    table = TABLES["collective"].conform(pa.Table.from_pandas(other, preserve_index=False))
    apart = apart.with_tables({"collective": table})
    assert with_paired_numbers(apart) is apart


def test_evidence_that_contradicts_itself_moves_nothing():
    """Fails when a job's own numbers and the ends of its collectives say different things, and one is believed."""
    trace = job((4, 5, 4), seqs=(30, 33, 30))
    assert with_paired_numbers(trace) is trace


def test_captures_of_one_rank_and_of_our_own_stay():
    """Fails when a pass for other tools' traces touches what has nothing to compare, or is ours."""
    alone = job((4,))
    assert with_paired_numbers(alone) is alone
    own = trace_of(origin="meshscope", step=[{"rank": 0, "step": 4, "dur_ns": 1}])
    assert with_paired_numbers(own) is own


@pytest.fixture(scope="module")
def resnet(traces_dir):
    """Return four ranks of a recorded job as they were read: three steps, no sequence numbers."""
    return import_trace(traces_dir / "amd_hpctraining" / "split")


@pytest.mark.traces
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("by", [-2, 1, 30])
def test_a_recorded_job_is_the_same_whatever_one_rank_counts_from(resnet, rank, by):
    """Fails when a shift that real records prove is not found, on any rank."""
    moved = renumbered(resnet, lambda one, step: step + by * (one == rank) * (step >= 0))
    found = with_paired_numbers(moved)
    for name in ("step", "collective"):
        pd.testing.assert_frame_equal(found.frame(name), resnet.frame(name))
    kernels = found.rank_frame("kernel", rank)["step"]
    assert kernels.tolist() == resnet.rank_frame("kernel", rank)["step"].tolist()

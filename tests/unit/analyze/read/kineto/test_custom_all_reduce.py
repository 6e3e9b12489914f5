"""All-reduce kernels of inference engines name no group: their members are a parameter of the kernel."""

import pytest
from tests.kineto_files import launched, step, write

from meshscope.analyze import diagnose, load_trace

KERNEL = "void {engine}::cross_device_reduce_1stage<__nv_bfloat16, {members}>({engine}::RankData*)"
LENGTH = 10_000


def job(folder, *, members=3, engine="vllm", late_us=0):
    """Return three ranks that reduce twice a step, of which rank 1 comes late to the first."""
    name = KERNEL.format(engine=engine, members=members)
    folder.mkdir()
    for rank in range(3):
        events = []
        for number in range(12):
            at, lag = number * LENGTH, late_us if rank == 1 else 0
            ready = at + 1100 + lag
            until = at + 1150 + late_us
            events += [
                step(number, at, LENGTH),
                *launched("gemm", at + lag + 10, at + lag + 100, 1000, 10 * number + 1),
                *launched(name, ready - 50, ready, until - ready, 10 * number + 2),
                *launched("gemm", until, until + 50, 500, 10 * number + 3),
                *launched(name, until + 500, until + 550, 50, 10 * number + 4),
            ]
        write(folder / f"rank{rank}.json", events, rank, 3)
    return load_trace(folder)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "aiter"])
def test_they_are_one_collective_of_all_ranks(tmp_path, engine):
    """Fails when nobody can say for whom the ranks of an inference engine wait."""
    trace = job(tmp_path / "job", engine=engine)
    rows = trace.frame("collective")
    assert rows["kind"].astype(str).unique().tolist() == ["all_reduce"]
    assert rows.groupby("seq")["rank"].nunique().tolist() == [3] * 24
    assert [list(map(int, ranks)) for ranks in trace.frame("group")["ranks"]] == [[0, 1, 2]]
    assert trace.layout.tp == 3


def test_the_late_rank_is_named(tmp_path):
    """Fails when a rank that is late in every step of an inference engine goes unnoticed."""
    first = diagnose(job(tmp_path / "job", late_us=3000)).findings[0]
    assert (first.kind, first.where["rank"]) == ("straggler_rank", 1)
    assert first.cost_frac == pytest.approx(0.3, abs=0.02)


def test_a_group_that_is_not_the_whole_job_stays_unknown(tmp_path):
    """Fails when ranks are joined in an operation that not all of them take part in."""
    assert job(tmp_path / "job", members=8).frame("collective").empty

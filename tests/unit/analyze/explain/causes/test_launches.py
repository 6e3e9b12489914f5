"""Idle time beside a transfer is the rank's own where nothing was launched, and doubtful where work was queued."""

import pytest
from tests.kineto_files import call, kernel, launched, step, write
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.explain.causes.checks import MAX_WAIT_APART
from meshscope.analyze.wording.quantities import percent

STEP_US, STEPS = 20_000, 6
REDUCED = {
    "Collective name": "allreduce",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "dtype": "BFloat16",
}


def events(rank, launched_at, *, more=()):
    """Return steps in which rank 0 waits 8 ms for rank 1, and runs 2 ms of other work from 4 ms after.

    Args:
        rank: The rank.
        launched_at: When in a step rank 0 launches that work, us; it starts at 9,000.
        more: Calls ``(name, begin, length)`` of rank 0 in each step.
    """
    for number in range(STEPS):
        t, first = 1_000 + number * STEP_US, 10 * number
        arrives = t + (5_000 if rank == 0 else 13_000)
        yield step(number, t, STEP_US)
        yield from launched("gemm", t + 10, t + 20, arrives - t - 30, first + 1)
        yield call("cudaLaunchKernel", t + 30, 5, first + 2)
        yield kernel("ncclDevKernel_AllReduce_Sum_bf16", arrives, t + 15_000 - arrives, first + 2, stream=20, **REDUCED)  # fmt: skip
        if rank == 0:
            yield from launched("gemm", t + launched_at, t + 9_000, 2_000, first + 3)
            yield from (call(name, t + at, dur) for name, at, dur in more)
        yield from launched("adam", t + 14_000, t + 15_010, 4_900, first + 4)


def diagnosed(tmp_path, launched_at, more=()):
    """Return the diagnosis of both ranks."""
    for rank in range(2):
        rows = list(events(rank, launched_at, more=more))
        write(tmp_path / f"rank{rank}.json", rows, rank=rank, world_size=2)
    return diagnose(load_trace(tmp_path))


def test_idle_time_before_a_late_launch_is_measured_and_leaves_the_causes(tmp_path):
    """Fails when a job whose host launches late beside a transfer has no causes, whatever that costs."""
    result = diagnosed(tmp_path, 8_990)
    apart = result.waiting.model_error_ns / result.step_time_ns
    assert apart > 2 * MAX_WAIT_APART
    assert result.causes
    (said,) = (limit for limit in texts(result.limits) if "hosts launch late" in limit)
    assert percent(apart) in said


def test_idle_time_with_work_queued_may_be_waiting_and_causes_are_refused(tmp_path):
    """Fails when waiting on the device that the replay took for work passes as a late launch."""
    result = diagnosed(tmp_path, 200)
    assert not result.causes
    assert any("no causes" in limit.lower() for limit in texts(result.limits))


def test_a_host_that_waits_for_its_device_is_not_late(tmp_path):
    """Fails when a host held by the transfer itself counts as one that launches late."""
    result = diagnosed(tmp_path, 8_990, more=[("cudaStreamSynchronize", 5_010, 3_970)])
    assert not result.causes


@pytest.mark.parametrize("launched_at", [8_990, 8_985])
def test_the_way_of_a_launch_to_the_device_is_the_ranks_own(tmp_path, launched_at):
    """Fails when the 10 us between a launch and its start count as waiting on the device."""
    result = diagnosed(tmp_path, launched_at)
    late = next(limit for limit in texts(result.limits) if "hosts launch late" in limit)
    assert percent(result.waiting.model_error_ns / result.step_time_ns) in late

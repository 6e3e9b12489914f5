"""What the other steps say of a rank that is slow on and off."""

import pytest
from tests.synthetic import MS, Job, capture_of

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout

DP4 = ParallelLayout(dp=4)
STEPS = 40
BLOCK = 5
GROUP = ("dp-0", tuple(range(4)))


def is_slow(step):
    """Return whether a step is in one of the blocks in which rank 1 is slow."""
    return step // BLOCK % 2 == 1


def straggler(forward_ns, outside_ns):
    """Return the finding on rank 1, from the length of its forward and of what follows its passes."""
    programs = []
    for rank in range(4):
        ops = []
        for step in range(STEPS):
            ops += [
                ("work", forward_ns(rank, step), step, "forward", 0, 0),
                ("work", 20 * MS, step, "backward", 0, 0),
                ("idle", outside_ns(rank, step)),
                ("collective", step, GROUP, "dp", "all_reduce", 1 << 20, MS // 10),
                ("end", step, 4096),
            ]
        programs.append(ops)
    result = diagnose(capture_of(Job(layout=DP4, microbatches=1), programs))
    (found,) = (one for one in result.findings if one.kind == "straggler_rank")
    assert found.where["rank"] == 1
    (cause,) = (one for one in result.causes if one.kind == "straggler_rank")
    assert cause.removal_gain_interval == found.removal_gain_interval
    return found, result.step_time_ns


@pytest.mark.parametrize("is_longer", [is_slow, lambda step: not is_slow(step)])
def test_the_interval_holds_what_the_slow_steps_are_longer(is_longer):
    """Fails when what all ranks lose beside a slow one is left out of what its repair may return."""
    found, step_ns = straggler(
        lambda rank, step: 10 * MS + 10 * MS * (rank == 1 and is_slow(step)),
        lambda _rank, step: 2 * MS * is_longer(step),
    )
    slow_steps = STEPS / 2 / (STEPS - 1)  # The first step is not analysed.
    longer = (12 if is_longer(0) is is_slow(0) else 8) * MS * slow_steps / step_ns
    low, high = found.removal_gain_interval
    assert low <= longer + 1e-9
    assert high >= longer - 1e-9
    assert low <= found.removal_gain_frac <= high
    assert high - low < 0.1


def test_the_interval_of_a_rank_that_is_late_outside_of_its_passes_is_of_these_steps():
    """Fails when passes that differ by chance tell the steps: they would say that it costs nothing."""
    found, step_ns = straggler(
        lambda rank, step: 10 * MS + MS // 2 * (rank == 1 and not is_slow(step)),
        lambda rank, step: 20 * MS * (rank == 1 and is_slow(step)),
    )
    low, high = found.removal_gain_interval
    assert low == pytest.approx(9.75 * MS / step_ns, abs=0.01)
    assert high == pytest.approx(10.25 * MS / step_ns, abs=0.01)


@pytest.mark.parametrize("block", [3, 5, 8])
def test_blocks_of_slow_steps_are_reported_in_a_job_without_any_noise(block):
    """Fails when the steps of the one slow rank pass for the noise of all, and hide when it is slow."""
    found, _ = straggler(
        lambda rank, step: 10 * MS + 10 * MS * (rank == 1 and step // block % 2 == 1),
        lambda _rank, _step: 0,
    )
    assert found.steps == tuple(step for step in range(STEPS) if step // block % 2 == 1)
    assert found.claim.values["slower"] == pytest.approx(1 / 3, abs=0.005)

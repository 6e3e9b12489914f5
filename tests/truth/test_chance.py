"""Ranks that are late by chance are not slow, and a slow one among them is found at its price."""

import numpy as np
import pytest
from tests.chance_noise import KINDS, Noise
from tests.synthetic import MS, Job, capture
from tests.truth.chance import FACTOR, SIZES, STEP_NS, false_suspects, suspected

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout

STEPS, MICROBATCHES = 60, 1
OF_JOBS = [
    Noise(shape="stalls in 1 of 10", unit="rank"),
    Noise(shape="Pareto 1.5", unit="rank"),
    Noise(shape="heavy lognormal", unit="host"),
    Noise(shape="exponential", unit="one rank a step"),
    Noise(shape="stalls in 1 of 10", unit="step"),
]


@pytest.mark.parametrize("noise", KINDS, ids=str)
def test_chance_makes_no_suspect(noise):
    """Fails when whoever is late now and then is called slow; the whole table: tests.truth.chance."""
    blamed, windows = false_suspects(noise, 2)
    assert windows == 2 * len(SIZES)
    assert not blamed


@pytest.mark.parametrize("noise", [n for n in KINDS if "1.1" not in n.shape], ids=str)
def test_a_slow_rank_among_chance_delays_is_found_with_its_excess(noise):
    """Fails when the test against chance hides a rank that is slow in all of its steps."""
    steps = noise.steps(5, 8, 100)
    steps[3] *= FACTOR
    found = suspected(steps)
    assert list(found) == [3]
    others = np.delete(steps, 3, axis=0).mean(axis=1)
    true = STEP_NS * (steps[3].mean() - np.median(others))
    assert found[3] == pytest.approx(true, rel=0.05)


def job(noise, factor=1.0):
    """Return the diagnosis of a job with chance delays, in which rank 2 may be slow by a factor."""
    layout = ParallelLayout(dp=8)
    steps = noise.steps(11, layout.world_size, STEPS)

    def work(kind, rank, step, microbatch):
        base = (10 if kind == "forward" else 20) * MS
        late = 30 * MS * (steps[rank, step] - 1.0) if kind == "forward" else 0.0
        return max(1, int(base * (factor if rank == 2 else 1.0) + late))

    return diagnose(capture(Job(layout=layout, microbatches=MICROBATCHES, steps=STEPS), work))


@pytest.mark.parametrize("noise", OF_JOBS, ids=str)
def test_chance_delays_of_a_job_are_jitter(noise):
    """Fails when ranks are swapped for chance delays, or nothing says what these cost."""
    result = job(noise)
    kinds = {finding.kind for finding in result.findings}
    assert "straggler_rank" not in kinds
    usual = 30 * MS + result.step_time_ns * 0.0
    lost = 1.0 - (usual + 3 * MS) / result.step_time_ns
    if lost > 0.05:
        assert kinds & {"jitter", "host_stall"}


@pytest.mark.parametrize("noise", OF_JOBS, ids=str)
def test_a_slow_rank_among_chance_delays_is_priced_as_the_paired_job_says(noise):
    """Fails when a repair returns chance delays as well, which the repaired rank keeps."""
    slow, healthy = job(noise, 1.3), job(noise)
    truth = (slow.step_time_ns - healthy.step_time_ns) / slow.step_time_ns
    (found,) = (f for f in slow.findings if f.kind == "straggler_rank")
    assert found.where["rank"] == 2
    assert found.removal_gain_frac == pytest.approx(truth, abs=0.02)

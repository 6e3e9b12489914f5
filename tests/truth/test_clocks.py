"""Hot devices in seeded jobs: named once, by their clock, with the cost of the paired job."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from meshscope.analyze.align.clocks.alignment import align
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout

SEED, CASES = 20_26_12, 12
LAYOUTS = (
    ParallelLayout(tp=2, pp=2, dp=2),
    ParallelLayout(pp=4),
    ParallelLayout(dp=8),
    ParallelLayout(pp=4, dp=2, vpp=1),
)
SLOW_RANKS = ("clock_throttle", "straggler_rank")


@dataclass(frozen=True)
class Case:
    """A job with a hot device, and perhaps a rank that is slow for another reason."""

    job: SyntheticJob
    hot: int
    slow: int | None


def case_of(number):
    """Return one seeded case."""
    draw = np.random.default_rng([SEED, number])
    layout = LAYOUTS[number % len(LAYOUTS)]
    ranks = draw.permutation(layout.world_size)
    hot, slow = int(ranks[0]), int(ranks[1])
    faults = [
        Fault(kind=FaultKind.CLOCK_DROP, rank=hot, factor=float(draw.uniform(1.05, 1.6))),
    ]
    has_slow = number % 3 == 0 and layout.world_size > layout.pp
    if has_slow:
        factor = float(draw.uniform(1.1, 1.4))
        faults.append(Fault(kind=FaultKind.SLOW_RANK, rank=slow, factor=factor))
    if number % 4 == 1:
        faults.append(Fault(kind=FaultKind.CLOCK_SKEW, host=0, offset_ms=250.0))
    job = SyntheticJob(
        layout=layout,
        steps=8,
        jitter_cv=float(draw.uniform(0.0, 0.03)),
        wire_cv=float(draw.uniform(0.0, 0.1)),
        ranks_per_host=4,
        seed=int(draw.integers(1 << 30)),
        sample_interval_ns=20_000_000,
        faults=tuple(faults),
    )
    return Case(job, hot, slow if has_slow else None)


@pytest.fixture(scope="module")
def answers():
    """Return each case with its truth and diagnosis."""
    found = []
    for case in map(case_of, range(CASES)):
        trace, truth = generate(case.job)
        found.append((case, truth, diagnose(align(trace))))
    return found


@pytest.mark.sampled(keep=())
def test_a_hot_device_is_a_clock_and_nothing_else(answers):
    """Fails when a hot device is called a slow rank, with its clock or in place of it."""
    named = [
        {(c.kind, c.where.get("rank")) for c in result.causes if c.kind in SLOW_RANKS}
        for _, _, result in answers
    ]
    wanted = [
        {("clock_throttle", case.hot)}
        | ({("straggler_rank", case.slow)} if case.slow is not None else set())
        for case, _, _ in answers
    ]
    assert named == wanted


def test_its_cost_is_that_of_the_paired_job(answers):
    """Fails when a repair is promised to return other than it does, by half a point of the step."""
    for case, truth, result in answers:
        (gain,) = [
            one.removal_gain_ns / truth.step_time_ns
            for one in truth.faults
            if one.fault.kind is FaultKind.CLOCK_DROP
        ]
        (cause,) = [c for c in result.causes if c.kind == "clock_throttle"]
        assert cause.removal_gain_frac == pytest.approx(gain, abs=5e-3), case.job.faults


def test_the_ledger_has_the_part_of_the_hot_device(answers):
    """Fails when the class is on another rank, or holds other than cycles at the lower clock."""
    for case, _, result in answers:
        (factor,) = [f.factor for f in case.job.faults if f.kind is FaultKind.CLOCK_DROP]
        mean = result.ledger.groupby("rank")[["forward", "backward", "clock"]].mean()
        own = mean.loc[case.hot]
        computing = own["forward"] + own["backward"] + own["clock"]
        assert own["clock"] == pytest.approx((1 - 1 / factor) * computing, rel=1e-6)
        assert mean["clock"].drop(case.hot).abs().max() == 0


def test_samples_change_the_name_and_hardly_the_cost(answers):
    """Fails when a device costs otherwise because somebody looked at it."""
    case, _, result = answers[0]
    unseen = replace(case.job, sample_interval_ns=0)
    blind = diagnose(align(generate(unseen)[0]))
    (clock,) = [c for c in result.causes if c.kind == "clock_throttle"]
    (slow,) = [c for c in blind.causes if c.kind in SLOW_RANKS and c.where["rank"] == case.hot]
    assert slow.kind == "straggler_rank"
    assert slow.removal_gain_frac == pytest.approx(clock.removal_gain_frac, abs=0.01)

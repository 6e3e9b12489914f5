"""Slow ranks that show only after unequal data is taken out."""

import pytest
from tests.synthetic import MS

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, parse_fault, truth_of
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

COSTS = Costs(
    layer_forward_ns=5 * MS,
    layer_backward_input_ns=5 * MS,
    layer_backward_weight_ns=5 * MS,
    optimizer_ns=2 * MS,
    pp_ns=MS // 10,
    dp_ns=MS,
)


@pytest.mark.parametrize(
    ("rank", "seed"), [pytest.param(7, 550007996, id="seven"), pytest.param(2, 6, id="two")]
)
def test_a_rank_that_unequal_data_hides_is_no_witness_of_it(rank, seed):
    """Fails when the rank beside it in its replica is said to have long sequences, and no causes hold."""
    job = SyntheticJob(
        layout=ParallelLayout(pp=2, dp=4, order="pp-dp-cp-tp"),
        schedule=ScheduleKind.GPIPE,
        costs=COSTS,
        microbatches=8,
        steps=24,
        jitter_cv=0.0225,
        wire_cv=0.021,
        seed=seed,
        faults=(
            parse_fault(f"blocked_rank:rank={rank},extra_ms=5.0,every=2"),
            parse_fault("sequence:cv=0.3"),
        ),
    )
    trace, truth = generate(job)[0], truth_of(job)
    causes = diagnose(trace).causes
    reported = {own.kind: own.removal_gain_frac for own in causes}
    (slow,) = (own for own in causes if own.kind == "straggler_rank")
    assert slow.where["rank"] == rank
    for kind, fault in zip(("straggler_rank", "sequence_imbalance"), truth.faults, strict=True):
        true_gain = fault.removal_gain_ns / truth.step_time_ns
        assert reported[kind] == pytest.approx(true_gain, abs=0.005)

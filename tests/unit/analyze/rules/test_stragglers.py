"""Slow ranks are named by what they cost, or, where that is not known, by what they exceed."""

import pytest

from meshscope.analyze.clocks.alignment import align
from meshscope.analyze.diagnosis import diagnose
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_slow_rank_is_named_although_another_rank_is_lost(factor):
    """A rank that takes a tenth longer would go unnamed because one of another stage was not captured."""
    faults = (f"slow_rank:rank=2,factor={factor}", "missing_rank:rank=14")
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=4, dp=2),
        microbatches=4,
        steps=8,
        jitter_cv=0.005,
        faults=tuple(parse_fault(text) for text in faults),
    )
    result = diagnose(align(generate(job)[0]))
    found = [finding for finding in result.findings if finding.kind == "straggler_rank"]
    assert not result.causes
    assert [finding.where["rank"] for finding in found] == ([2] if factor > 1 else [])
    assert all(finding.cost_frac is None for finding in found)

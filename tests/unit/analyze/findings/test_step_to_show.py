"""Which step a critical path is shown of, and what is said of one that has none."""

from dataclasses import replace

import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.findings.critical_path import critical_path
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.findings.ordered import find
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.layout import ParallelLayout

EVEN = uniform(10 * MS, 20 * MS)
SLOW_STEPS = (3, 7, 11)


def on_and_off(kind, rank, step, microbatch):
    """Return the work of a job whose rank 2 is slow in a few of its steps."""
    factor = 2 if rank == 2 and step in SLOW_STEPS else 1
    return EVEN(kind, rank, step, microbatch) * factor


def test_the_step_is_one_in_which_the_first_finding_is_so():
    """Fails when a rank that is slow now and then is looked for in a step in which it was not."""
    account = measure(capture(Job(layout=ParallelLayout(dp=4), steps=14), on_and_off))
    (first, *_) = find(account)
    assert (first.where["rank"], first.steps) == (2, SLOW_STEPS)
    path = critical_path(account)
    assert path.step in SLOW_STEPS
    assert path.by("rank")["rank"].iloc[0] == 2
    assert "3 steps of the finding straggler rank (rank 2" in str(path.because)
    assert critical_path(account, 5).because is None


def test_without_a_finding_it_is_the_median_of_all():
    """Fails when the reason names a finding that there is not."""
    account = measure(capture(Job(layout=ParallelLayout(dp=4), steps=6), EVEN))
    assert critical_path(account).because.code == "shown_step.median"


def test_a_step_that_never_ended_leads_to_who_did_not_arrive():
    """Fails when the step in which a job hung is refused as if there were no such step."""
    fault = parse_fault("hang:rank=3,first_step=2,microbatch=1")
    job = SyntheticJob(layout=ParallelLayout(pp=2, dp=2, tp=2), steps=4, faults=(fault,))
    account = measure(generate(job)[0])
    hung = int(account.windows.steps[-1]) + 1
    with pytest.raises(MeshscopeError) as caught:
        critical_path(account, hung)
    assert f"step {hung} ended on none of 8 captured ranks" in str(caught.value)
    assert "Rank 3 did not arrive" in str(caught.value)
    with pytest.raises(MeshscopeError, match="not among the analysed steps"):
        critical_path(account, hung + 1)


def test_a_step_that_is_discarded_is_not_called_unended():
    """Fails when the first step, which all ranks ended, is reported as one that nobody did."""
    trace = capture(Job(layout=ParallelLayout(dp=2), steps=5), EVEN)
    account = measure(replace(trace, origin="meshscope"))
    assert 0 not in account.windows.steps
    with pytest.raises(MeshscopeError, match="left out of the account"):
        critical_path(account, 0)

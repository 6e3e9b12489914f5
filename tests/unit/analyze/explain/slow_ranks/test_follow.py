"""A capture that grows is judged as the same steps one after the other are."""

import pytest

from meshscope.analyze.explain.slow_ranks import Follower
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.analyze.tables.part import StepRange, of_steps
from meshscope.probe.schema.layout import ParallelLayout

MESH = ParallelLayout(pp=2, dp=2)
STEPS = 70
SLOW, FIRST, LAST = 2, 30, 44


@pytest.fixture(scope="module")
def trace():
    """Return a job of which one rank takes 10 % longer for a while."""
    fault = Fault(
        kind=FaultKind.SLOW_RANK, rank=SLOW, factor=1.10, first_step=FIRST, last_step=LAST
    )
    return generate(
        SyntheticJob(layout=MESH, steps=STEPS, microbatches=6, jitter_cv=0.01, faults=(fault,))
    )[0]


def looks(trace, every):
    """Return what each look shows of a capture that grows by so many steps."""
    follower = Follower()
    ends = range(every - 1, STEPS, every)
    return [follower.look(of_steps(trace, StepRange(0, last))) for last in ends]


@pytest.mark.parametrize("every", [5, STEPS])
def test_a_slow_rank_is_found_and_its_end_is_seen(trace, every):
    """How often somebody looks would decide whether a slow rank is found."""
    seen = looks(trace, every)
    found = [own.rank for look in seen for own in look.found]
    assert found == [SLOW]
    if every < STEPS:
        (own,) = (own for look in seen for own in look.found)
        assert abs(own.first_bad_step - FIRST) <= 1
        assert own.slowdown == pytest.approx(0.10, abs=0.02)
        assert [own.rank for look in seen for own in look.recovered] == [SLOW]
    assert seen[-1].slow == ()


def test_no_step_is_looked_at_twice(trace):
    """A look at a capture that has not grown would count the last steps again."""
    follower = Follower()
    first = follower.look(of_steps(trace, StepRange(0, 39)))
    again = follower.look(of_steps(trace, StepRange(0, 39)))
    assert first.steps == (0, 39)
    assert again.steps is None
    assert [own.rank for own in again.slow] == [SLOW]
    assert not again.found


def test_a_step_that_a_rank_has_not_ended_waits(trace):
    """A rank that is behind would lack in the comparison of its last step."""
    steps = trace.tables["step"].to_pandas()
    rows = steps[~((steps["rank"] == 3) & (steps["step"] > 20))]
    behind = trace.with_tables(
        {"step": trace.tables["step"].from_pandas(rows, schema=trace.tables["step"].schema)}
    )
    assert Follower().look(behind).steps == (0, 20)


def test_another_number_of_microbatches_is_learnt_anew(trace):
    """Passes would be compared with those of other microbatches."""
    follower = Follower()
    follower.look(of_steps(trace, StepRange(0, 29)))
    other = generate(SyntheticJob(layout=MESH, steps=40, microbatches=4, jitter_cv=0.01))[0]
    look = follower.look(other)
    assert look.steps == (30, 39)
    assert look.began_anew
    assert not look.slow

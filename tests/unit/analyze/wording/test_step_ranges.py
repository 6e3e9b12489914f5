"""Steps are listed as the runs that they lie in."""

from meshscope.analyze.wording.step_ranges import listed_steps, step_ranges


def test_runs_without_a_gap_are_joined():
    """Fails when a sentence names steps that are not meant, or each of a thousand steps alone."""
    assert step_ranges([9, 3, 4, 5, 4]) == [(3, 5), (9, 9)]
    assert listed_steps([9, 3, 4, 5]) == "steps 3-5 and 9"
    assert listed_steps([3]) == "step 3"

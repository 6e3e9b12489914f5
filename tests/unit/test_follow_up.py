"""The command that takes up a finding, for places that simulated jobs do not have."""

from dataclasses import replace

import pytest

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.commands.follow_up import follow_up
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(scope="module")
def result():
    """Return a diagnosis whose first finding is a slow rank."""
    fault = parse_fault("slow_rank:rank=5,factor=1.6")
    layout = ParallelLayout(pp=2, dp=4)
    return diagnose(generate(SyntheticJob(layout=layout, steps=8, faults=(fault,)))[0])


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"rank": 5}, ("whatif", "--fix", "rank=5")),
        ({"ranks": [4, 5]}, ("whatif", "--fix", "rank=4", "--fix", "rank=5")),
        ({"ranks": list(range(9)), "host": "a"}, ("whatif", "--fix", "host=a")),
        ({"ranks": list(range(9))}, ()),
        ({}, ()),
    ],
)
def test_a_place_that_cannot_be_repaired_has_no_command(result, where, words):
    """Fails when a finding without a rank ends the command, or ranks are left out of it."""
    only = replace(result, findings=(replace(result.findings[0], where=where),))
    assert follow_up(only) == words


def test_without_a_replay_nothing_is_predicted(result):
    """Fails when the next command can only be refused."""
    assert follow_up(result)[0] == "whatif"
    assert follow_up(replace(result, model_error_frac=None)) == ()

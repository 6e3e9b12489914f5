"""Causes are believed where the replay agrees with the account, and no repair loses."""

from dataclasses import replace

import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.explain.causes.checks import losing, parted
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.tables.results import Cause, WaitAccount
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(scope="module")
def account():
    """Return a job whose replay is right."""
    job = Job(layout=ParallelLayout(pp=2, dp=2), steps=4)
    return measure(capture(job, uniform(10 * MS, 20 * MS)))


def cause(kind, gain, share=0.0, **where):
    """Return a cause that returns so much."""
    return Cause(
        kind=kind,
        where=where,
        share_frac=share,
        removal_gain_frac=gain,
        direct_ns=0.0,
        induced_wait_ns=0.0,
    )


def test_a_right_replay_passes(account):
    """No job would have causes."""
    assert list(parted(account.program, account.ledger, account.attribution.waiting)) == []


def test_waiting_that_the_replay_lacks_is_said_with_its_size(account):
    """Waiting that is frozen into the work of ranks would make every repair return too little."""
    step_ns = account.windows.step_time_ns
    waiting = WaitAccount(
        measured_ns=0.3 * step_ns,
        bubble_ns=0.2 * step_ns,
        induced_ns=0.05 * step_ns,
        model_error_ns=0.05 * step_ns,
    )
    (why,) = parted(account.program, account.ledger, waiting)
    assert "30.0 %" in str(why)
    assert "25.0 %" in str(why)


def test_work_that_the_account_calls_communication_is_said_with_its_rank(account):
    """A rank would be slow for time in which it may have waited."""
    program = account.program
    marks = program.marks.copy()
    row = marks.index[(marks["rank"] == 2) & (marks["work_ns"] > 0)][0]
    marks.loc[row, "work_ns"] += int(0.05 * account.windows.step_time_ns * 4)
    found = parted(replace(program, marks=marks), account.ledger, account.attribution.waiting)
    assert "rank 2" in str(next(found))


@pytest.mark.parametrize(
    ("kind", "gain", "share", "is_refused"),
    [
        ("jitter", -0.356, -0.3, True),
        ("straggler_rank", -0.021, 0.06, True),
        ("sequence_imbalance", -0.04, -0.01, True),
        # Equal microbatches may give a slow rank more of them.
        ("sequence_imbalance", -0.04, 0.03, False),
        # Equal stages move load to others.
        ("stage_imbalance", -0.2, -0.1, False),
        ("jitter", -0.01, -0.01, False),
    ],
)
def test_a_repair_that_cannot_lose_and_does_refuses_the_set(kind, gain, share, is_refused):
    """Jitter would be told to return -35.6 %."""
    where = {"rank": 3} if kind == "straggler_rank" else {}
    assert bool(list(losing((cause(kind, gain, share, **where),)))) is is_refused

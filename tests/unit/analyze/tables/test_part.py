"""Some steps of a capture, as the user asks for them."""

import pytest
from tests.synthetic import MS, Job, capture
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.tables.part import StepRange, of_steps
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout


def spans(*steps):
    """Return a span of rank 0 in each step."""
    return [{"step": step, "kind": "forward", "start_ns": step, "dur_ns": 1} for step in steps]


def ends(count, **row):
    """Return so many steps of rank 0, of 10 ns each."""
    return [{"step": step, "start_ns": 10 * step, "dur_ns": 10, **row} for step in range(count)]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("3:5", {3, 4, 5}, {2, 6}),
        ("3:", {3, 10**9}, {2}),
        (":5", {0, 5}, {6}),
        ("0:", {0, 10**9}, set()),
        (" 4:4 ", {4}, {3, 5}),
    ],
)
def test_both_ends_are_included(text, inside, outside):
    """A step would be missing at one end."""
    first, last = steps = StepRange.parse(text)
    assert all(first <= step <= last for step in inside)
    assert not any(first <= step <= last for step in outside)
    assert StepRange.parse(steps.text) == steps


@pytest.mark.parametrize(
    "text", ["", ":", "5", "5:3", "-1:3", "a:b", "1:2:3", "1.5:2", "9" * 16 + ":"]
)
def test_what_names_no_steps_is_refused_with_an_example(text):
    """A slip would choose other steps than meant, or end in a traceback."""
    with pytest.raises(ConfigError, match=r"names no steps.*3000:4000"):
        StepRange.parse(text)


def test_rows_of_other_steps_are_gone_and_it_is_said():
    """Events of other steps would count for those that were chosen."""
    trace = trace_of(step=ends(9), span=spans(*range(9)))
    part = of_steps(trace, StepRange(3, 5))
    for name in ("step", "span"):
        assert part.frame(name)["step"].tolist() == [3, 4, 5]
    assert texts(part.limits) == ("Only steps 3:5 were asked for, of 0:8",)
    assert trace.frame("step")["step"].tolist() == list(range(9))


def test_what_tells_of_the_run_stays_whole():
    """The level of later steps was chosen before them, and would be unknown."""
    recording = [{"step": 0, "level": "collectives", "steps": 9, "dur_ns": 1}]
    part = of_steps(trace_of(step=ends(9), recording=recording), StepRange(3, 5))
    assert len(part.frame("recording")) == 1


def test_where_a_run_broke_off_belongs_to_its_end_only():
    """A part from the middle of a run would look as if the job had stood still there."""
    progress = [{"rank": 0, "group_id": "g", "issued_seq": 4}]
    trace = trace_of(step=ends(9), progress=progress)
    assert len(of_steps(trace, StepRange.parse("3:")).frame("progress")) == 1
    assert len(of_steps(trace, StepRange(0, 8)).frame("progress")) == 0
    assert len(of_steps(trace, StepRange(3, 5)).frame("progress")) == 0


def test_steps_that_are_not_there_are_named_with_those_that_are():
    """A user would get an empty result, and not know which steps there are."""
    with pytest.raises(ConfigError, match=r"no step 20:30 .*has 0:8"):
        of_steps(trace_of(step=ends(9)), StepRange(20, 30))
    with pytest.raises(ConfigError, match="no ends of steps"):
        of_steps(trace_of(span=spans(1)), StepRange(0, 5))


@pytest.mark.parametrize(
    ("chosen", "attempts", "analysed"),
    [
        (None, [0], [1, 2, 3, 4, 5, 6, 7]),
        ((0, 4), [0], [1, 2, 3, 4]),
        ((2, 5), [0], [2, 3, 4, 5]),
        ((2, 6), [0, 4], [2, 3, 5, 6]),
        ((4, 7), [0, 4], [5, 6, 7]),
    ],
)
def test_only_the_first_step_of_an_attempt_is_warm_up(chosen, attempts, analysed):
    """The first step that is asked for would be left out, or one-time work billed to it."""
    attempt = [
        {"attempt": number + 1, "first_step": first} for number, first in enumerate(attempts)
    ]
    trace = trace_of(origin="meshscope", step=ends(8), attempt=attempt)
    if chosen is not None:
        trace = of_steps(trace, StepRange(*chosen))
    assert step_windows(trace).steps.tolist() == analysed


def test_a_fault_of_some_steps_costs_in_them_what_it_costs_there():
    """What changed in a long run would be reported as a share of all its steps only."""
    job = Job(layout=ParallelLayout(dp=4), steps=24, microbatches=4)
    trace = capture(
        job,
        lambda kind, rank, step, microbatch: (30 if rank == 2 and step >= 12 else 20) * MS,
    )
    (whole,) = (cause for cause in diagnose(trace).causes if cause.kind == "straggler_rank")
    assert whole.removal_gain_frac < 0.25
    assert not any(
        cause.kind == "straggler_rank" and cause.share_frac > 0.001
        for cause in diagnose(of_steps(trace, StepRange(0, 11))).causes
    )
    result = diagnose(of_steps(trace, StepRange(12, 23)))
    (cause,) = (found for found in result.causes if found.kind == "straggler_rank")
    assert cause.where["rank"] == 2
    assert cause.removal_gain_frac * result.step_time_ns == pytest.approx(8 * 10 * MS, rel=0.02)

"""Which steps carry a cause: known from gaps in what it costs, and said in few words."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import trace_of

from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.causes.without_peers import MIN_GAP
from meshscope.analyze.findings.rules.bad_steps import MOST_LEFT, BadSteps, all_steps, bad_steps
from meshscope.analyze.findings.rules.grading import MIN_COST


def windows_of(count, first=0):
    """Return the windows of a capture with so many steps."""
    rows = [{"step": step, "start_ns": 10 * step, "dur_ns": 10} for step in range(count)]
    return step_windows(trace_of(step=[{**row, "step": first + row["step"]} for row in rows]))


def chosen(costs, cost_frac=0.1):
    """Return the steps that carry a cause with these costs by step."""
    return list(bad_steps(windows_of(len(costs)), pd.Series(costs, dtype=float), cost_frac).steps)


@pytest.mark.parametrize(
    ("costs", "steps"),
    [
        ([0, 0, 0, 100, 0, 0], [3]),
        ([0.5, 0.4, 0.5, 100, 0.6, 0.5], [3]),
        ([20, 0.1, 20, 100, 0, 20], [0, 2, 3, 5]),
        ([10, 12, 9, 11, 8, 10], [0, 1, 2, 3, 4, 5]),
        ([10, 0, 11, 0, 9, 0], [0, 2, 4]),
        ([0, 9, 10, 11, 8, 12], [1, 2, 3, 4, 5]),
        ([-3, 0, -1, 5, 0, 0], [3]),
        ([0, 0, 0], [0, 1, 2]),
        ([7], [0]),
        ([9, 10, 0, 11, 8, 12, 9, 10], list(range(8))),
        ([0, 0, *[9] * 14], list(range(2, 16))),
    ],
)
def test_the_steps_above_a_gap_carry_the_cause(costs, steps):
    """Fails when a stall in one step is said of all, or noise is said of some."""
    assert chosen(costs) == steps


def test_a_little_in_every_step_counts_if_it_is_worth_a_finding():
    """Fails when a stall of 2 % in every step hides behind a longer one in a single step."""
    costs = [2.0] * 20
    costs[5] = 100.0
    assert chosen(costs, cost_frac=0.02) == [5]
    assert chosen(costs, cost_frac=0.20) == list(range(20))


@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=30),
    st.one_of(st.none(), st.floats(0.001, 1.0)),
)
def test_what_is_left_out_is_little_and_far_below(costs, cost_frac):
    """Fails when a step is left out that costs as much as one that is named."""
    when = bad_steps(windows_of(len(costs)), pd.Series(costs), cost_frac)
    assert when.steps
    if when.are_all:
        return
    named = np.array([costs[step] for step in when.steps])
    rest = np.array([cost for step, cost in enumerate(costs) if step not in when.steps])
    assert named.min() >= MIN_GAP * rest.max() * (1 - 1e-9)
    left = MOST_LEFT if cost_frac is None else min(MOST_LEFT, MIN_COST / cost_frac)
    assert rest.sum() <= left * sum(costs) * (1 + 1e-9)
    assert when.held_frac == pytest.approx(named.sum() / sum(costs))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([5], "in step 5"),
        ([5, 6], "in steps 5 and 6"),
        ([3, 9, 12], "in steps 3, 9 and 12"),
        ([4, 5, 6, 7], "in steps 4-7"),
        ([4, 5, 6, 9], "in steps 4-6 and 9"),
        ([9, 19, 29, 39], "in every 10th step, 9 to 39"),
        ([1, 12, 23, 34], "in every 11th step, 1 to 34"),
        ([10, 12, 14], "in steps 10, 12 and 14"),
        ([0, 3, 4, 8, 12, 15, 21, 25, 30, 33], "in 10 of 40 steps between 0 and 33"),
        (list(range(40)), "in all analysed steps"),
    ],
)
def test_steps_in_words(steps, words):
    """Fails when people have to read a list of forty steps, or cannot tell which they are."""
    when = BadSteps(tuple(steps), tuple(range(40)))
    assert str(when.message) == words
    assert when.where == {"steps": [steps[0], steps[-1]]}


def test_sampled_steps_that_follow_each_other_are_a_range():
    """Fails when of steps of which each tenth was analysed a rhythm of the job is claimed."""
    analysed = (0, 10, 20, 30, 40, 50)
    assert str(BadSteps((20, 30, 40), analysed).message) == "in steps 20-40"
    assert str(BadSteps((0, 20, 40), analysed).message) == "in steps 0, 20 and 40"


@pytest.mark.parametrize(
    ("held", "part"), [(1.0, "all"), (0.95, "nearly all"), (0.7, "most")], ids=str
)
def test_a_claim_says_how_much_of_the_cause_the_steps_hold(held, part):
    """Fails when a share of the mean step reads as a share of the steps that are named."""
    assert str(BadSteps((5,), (4, 5, 6), held).part) == f"{part} of it in step 5"
    assert BadSteps((4, 5, 6), (4, 5, 6), held).part is None


def test_a_capture_without_step_marks_has_no_range():
    """Fails when the number that stands for the whole capture is shown as a step."""
    when = all_steps(step_windows(trace_of(span=[{"kind": "forward", "start_ns": 0, "dur_ns": 9}])))
    assert when.where == {}
    assert when.message.code == "steps.whole_capture"
    assert all_steps(windows_of(1, first=7)).message.code == "steps.only_one"

"""Which steps are analysed where a capture holds more of some than of others."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.choice import most_detailed
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.tables.classes import CLASSES


def chosen(details):
    """Return the choice from the detail of each step, which take 10 ns, and 20 in full."""
    frame = pd.DataFrame(
        {
            "rank": 0,
            "step": range(len(details)),
            "dur_ns": [20 if detail == "full" else 10 for detail in details],
            "detail": details,
        }
    )
    return most_detailed(frame, np.arange(len(details)))


def test_the_steps_of_most_detail_are_analysed_and_the_others_said():
    """An account would take communication that was not recorded for computing."""
    choice = chosen(["full", "sums", "full", "sums", "steps", "full"])
    assert choice.steps.tolist() == [0, 2, 5]
    (limit,) = texts(choice.limits)
    assert "3 steps of 6 left out" in limit
    assert "2 with sums of communication and 1 with their length only" in limit
    assert limit.endswith("those of the account 20 ns")


def lengths_of(others):
    """Return the limits of 100 steps of 10 ns, each fourth in full, some of others' own length."""
    frame = pd.DataFrame({"rank": 0, "step": range(100), "dur_ns": 10})
    frame["detail"] = ["full" if step % 4 == 0 else "steps" for step in range(100)]
    frame["dur_ns"] = [others.get(step, 10) for step in range(100)]
    return " ".join(texts(most_detailed(frame, np.arange(100)).limits))


def test_long_steps_between_the_windows_are_named():
    """A save of a minute in a step of which only the length is known went without a word."""
    said = lengths_of({50: 710, 30: 110, 31: 30})
    # 700 + 100 + 20 beyond the usual 10, of 1,820 in all.
    assert "3 steps of these took at least 3 times the median step" in said
    assert "beyond it is 45.1 % of all time" in said
    assert said.index("50 (710 ns)") < said.index("30 (110 ns)") < said.index("31 (30 ns)")


@pytest.mark.parametrize("others", [{}, {48: 710}, {50: 29}], ids=["none", "in the account", "few"])
def test_steps_that_are_alike_or_in_the_account_are_not_named(others):
    """A reader would look for what is in the account already, or for chance."""
    assert "times the median step" not in lengths_of(others)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (lambda step: step < 100 or step % 100 == 0, "lie before step 54"),
        (lambda step: step >= 900 or step % 100 == 0, "lie after step 945"),
        (lambda step: step % 10 == 0, None),
        (lambda step: step // 25 % 4 == 0, None),
    ],
    ids=["the first ones", "the last ones", "each tenth", "windows"],
)
def test_it_is_said_where_steps_of_one_part_of_the_run_prevail(kept, words):
    """A reader would take the shares of the first hundred steps for those of a run of a week."""
    limit = " ".join(
        texts(chosen(["full" if kept(step) else "sums" for step in range(1000)]).limits)
    )
    if words is None:
        assert "--steps" not in limit
    else:
        assert words in limit
        assert "--steps FIRST:LAST" in limit


MS = 1_000_000
LENGTH = 10 * MS


def job(windows, *, ranks=2):
    """Return a job whose ranks have the windows (step, start, dur), and compute for all of 100 ms."""
    rows = [
        {"rank": rank, "step": step, "start_ns": start, "dur_ns": dur}
        for rank in range(ranks)
        for step, start, dur in (windows(rank) if callable(windows) else windows)
    ]
    spans = [
        {"rank": rank, "kind": "forward", "start_ns": 0, "dur_ns": 10 * LENGTH}
        for rank in range(ranks)
    ]
    return trace_of(step=rows, span=spans, origin="test")


def even(*steps):
    """Return windows of 10 ms each, one after the other, numbered as given."""
    return [(step, place * LENGTH, LENGTH) for place, step in enumerate(steps)]


def ledger_of(trace):
    """Return the windows, and the ledger by step, of which the sums were found exact."""
    windows = step_windows(trace)
    by_step = build_ledger(trace, windows, communication_events(trace, windows)).by_step
    sums, lengths = by_step[list(CLASSES)].sum(axis=1), by_step["step_ns"]
    assert sums.to_numpy() == pytest.approx(lengths.to_numpy(), rel=1e-9)
    return windows, by_step


def test_a_renumbered_step_is_left_out_and_reported():
    """Fails when its window is sought after those that follow it: half of the time was lost."""
    windows, _ = ledger_of(job(even(0, 1, 99, 3, 4)))
    assert windows.steps.tolist() == [0, 1, 3, 4]
    (limit,) = texts(windows.limits)
    assert limit.startswith("1 step left out: 99. Their numbers contradict the order in time")


def test_a_step_that_one_rank_alone_renumbered_is_left_out_on_all():
    """Fails when ranks are compared over different steps, or each has an order of its own."""
    swapped = {0: (0, 1, 2, 3, 4, 5), 1: (0, 2, 1, 3, 4, 5)}
    windows, by_step = ledger_of(job(lambda rank: even(*swapped[rank])))
    assert windows.steps.tolist() == [0, 1, 3, 4, 5]
    assert len(by_step) == 2 * 5


def test_rows_in_any_order_are_the_same_job():
    """Fails when the order of rows, which a reader may change, decides which window counts."""
    again = [*even(0, 1, 2), (1, 3 * LENGTH, LENGTH), (2, 4 * LENGTH, LENGTH)]
    first, _ = ledger_of(job(again))
    second, _ = ledger_of(job(again[::-1]))
    assert first.frame.equals(second.frame)
    assert first.frame["start_ns"].tolist()[:3] == [0, 3 * LENGTH, 4 * LENGTH]
    assert "4 steps of ranks recorded twice: the later one counts" in texts(first.limits)


def test_a_window_that_reaches_into_the_next_is_cut():
    """Fails when the time that two windows share is missing from the sums of one of them."""
    windows, by_step = ledger_of(job([(0, 0, LENGTH + 2 * MS), *even(9, 1, 2)[1:]]))
    assert by_step["step_ns"].tolist() == [LENGTH] * 6
    assert any(
        "reach into the next one, by up to 2.00 ms" in limit for limit in texts(windows.limits)
    )


def test_rounding_is_cut_without_a_word():
    """Fails when a tool that rounds to microseconds makes each of its captures look damaged."""
    windows, _ = ledger_of(job([(0, 0, LENGTH + 1000), *even(9, 1, 2)[1:]]))
    assert texts(windows.limits) == ()


def test_a_window_of_negative_length_is_left_out():
    """Fails when a step gives time back that nobody had."""
    windows, _ = ledger_of(job([*even(0, 1, 2), (3, 3 * LENGTH, -5 * MS)]))
    assert windows.steps.tolist() == [0, 1, 2]
    assert "2 steps of ranks with a negative length left out" in texts(windows.limits)


def test_steps_with_a_clock_each_keep_their_numbers():
    """Fails when steps that all begin at zero are taken for one another."""
    trace = trace_of(
        per_step_clock=True,
        step=[{"step": step, "start_ns": 0, "dur_ns": LENGTH} for step in (0, 1, 2)],
    )
    assert step_windows(trace).steps.tolist() == [0, 1, 2]


WINDOW = st.tuples(
    st.integers(0, 6), st.integers(0, 12).map(lambda at: at * 5 * MS), st.integers(-2, 9 * MS)
)


@given(
    ranks=st.lists(st.lists(WINDOW, min_size=1, max_size=7), min_size=1, max_size=3),
    random=st.randoms(use_true_random=False),
)
def test_sums_are_exact_whatever_the_windows(ranks, random):
    """Fails when some order of windows makes a step longer or shorter than what it is made of."""
    trace = job(lambda rank: random.sample(ranks[rank], len(ranks[rank])), ranks=len(ranks))
    windows = step_windows(trace)
    if len(windows.steps):
        ledger_of(trace)
    for _, own in windows.frame.groupby("rank"):
        start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        assert (end >= start).all()
        assert (start[1:] >= end[:-1]).all()
    lost = {step for own in ranks for step, _, _ in own} - set(windows.steps.tolist())
    assert not lost or texts(windows.limits)


@given(order=st.permutations(range(7)))
def test_as_few_steps_as_can_be_are_left_out(order):
    """Fails when one wrong number takes others with it: what is left is a longest rising series."""
    windows, _ = ledger_of(job(even(*order)))
    longest = np.ones(7, int)
    for last in range(7):
        for before in range(last):
            if order[before] < order[last]:
                longest[last] = max(longest[last], longest[before] + 1)
    assert len(windows.steps) == longest.max()

"""Which steps are analysed, and their windows, on tables of a few rows."""

import pytest
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.align.steps.windows import WHOLE_CAPTURE, step_windows


def steps(*rows):
    """Return step rows from (rank, step, start, dur)."""
    return [dict(zip(("rank", "step", "start_ns", "dur_ns"), row, strict=True)) for row in rows]


def test_contiguous_steps_are_chained_and_timed_end_to_end():
    """The step time would leave out the time between steps."""
    windows = step_windows(
        trace_of(step=steps((0, 4, 100, 10), (0, 5, 110, 30), (1, 4, 100, 20), (1, 5, 120, 20)))
    )
    assert windows.chained
    assert windows.run.tolist() == [0, 0]
    assert windows.step_time_ns == 20.0
    assert windows.steps.tolist() == [4, 5]


def test_steps_with_a_hole_between_them_are_runs_of_their_own():
    """Time between two sampled bursts of steps would count as step time."""
    rows = steps(
        *((0, 4, 0, 10), (0, 9, 500, 30), (0, 10, 530, 10)),
        *((1, 4, 0, 20), (1, 9, 500, 20), (1, 10, 520, 24)),
    )
    windows = step_windows(trace_of(step=rows))
    assert windows.chained
    assert windows.run.tolist() == [0, 1, 1]
    assert windows.step_time_ns == (10 + 40 + 20 + 44) / 2 / 3


def test_steps_that_do_not_follow_each_other_in_time_are_runs_of_their_own():
    """What a job did between two steps, unseen, would count as their time."""
    rows = steps((0, 4, 0, 100), (0, 5, 100, 100), (0, 6, 203, 100))
    assert step_windows(trace_of(step=rows)).run.tolist() == [0, 0, 1]


def test_without_a_step_on_every_rank_there_are_no_windows():
    """Where each step has its own clock, a capture of pieces would end with a traceback."""
    rows = steps((0, 4, 0, 10), (1, 5, 0, 20))
    windows = step_windows(trace_of(step=rows, per_step_clock=True))
    assert windows.frame.empty
    assert any(
        "2 of 2 steps left out: not on every captured rank" in text
        for text in texts(windows.limits)
    )


def test_steps_of_clocks_of_their_own_are_looked_at_one_by_one():
    """Ends and starts of different clocks would be taken for one time."""
    rows = steps((0, 4, 0, 10), (0, 5, 10, 30), (1, 4, 0, 20), (1, 5, 20, 20))
    windows = step_windows(trace_of(step=rows, per_step_clock=True))
    assert not windows.chained
    assert windows.run.tolist() == [0, 1]
    assert windows.step_time_ns == (20 + 30) / 2


def test_first_step_of_our_own_capture_is_warm_up_and_said_so():
    """One-time work of the first step would be billed to every step."""
    rows = steps(*((0, step, 10 * step, 10) for step in range(3)))
    windows = step_windows(trace_of(origin="meshscope", step=rows))
    assert windows.steps.tolist() == [1, 2]
    assert any("Step 0" in limit and "discarded" in limit for limit in texts(windows.limits))
    assert step_windows(trace_of(origin="kineto", step=rows)).steps.tolist() == [0, 1, 2]
    assert step_windows(trace_of(origin="meshscope", step=rows[:2])).steps.tolist() == [0, 1]


def test_the_first_step_of_each_attempt_is_warm_up():
    """Fails when caches that a restarted process fills anew are billed to the job."""
    rows = steps(*((0, step, 10 * step, 10) for step in range(8)))
    begins = [{"attempt": 1, "first_step": 0}, {"attempt": 2, "first_step": 4}]
    windows = step_windows(trace_of(origin="meshscope", step=rows, attempt=begins))
    assert windows.steps.tolist() == [1, 2, 3, 5, 6, 7]
    assert any("Steps 0 and 4 discarded" in limit for limit in texts(windows.limits))


def test_attempts_of_one_step_each_keep_all_but_the_first():
    """Fails when a job that crashes at every step has nothing left to look at."""
    rows = steps(*((0, step, 10 * step, 10) for step in range(3)))
    begins = [{"attempt": step + 1, "first_step": step} for step in range(3)]
    windows = step_windows(trace_of(origin="meshscope", step=rows, attempt=begins))
    assert windows.steps.tolist() == [1, 2]


def test_a_step_that_one_rank_lacks_is_left_out_and_counted():
    """Ranks would be compared over different steps."""
    rows = steps((0, 0, 0, 10), (0, 1, 10, 10), (1, 0, 0, 10), (1, 1, 10, 10), (0, 2, 20, 10))
    windows = step_windows(trace_of(step=rows))
    assert windows.steps.tolist() == [0, 1]
    assert any(limit.startswith("1 of 3 steps") for limit in texts(windows.limits))


def test_a_capture_without_step_borders_is_one_window_per_rank():
    """A trace from a profiler without step marks could not be analysed at all."""
    windows = step_windows(
        trace_of(
            span=[{"kind": "forward", "start_ns": 50, "dur_ns": 10, "step": -1}],
            collective=[{"start_ns": 70, "end_ns": 90, "step": -1}],
        )
    )
    assert windows.steps.tolist() == [WHOLE_CAPTURE]
    assert windows.step_time_ns == 40.0
    assert any("No step boundaries" in limit for limit in texts(windows.limits))


def test_the_window_without_steps_begins_with_training():
    """Fails when imports count as a part of training, where no step was marked."""
    trace = trace_of(
        origin="meshscope",
        ranks=(0, 1),
        span=[
            {"kind": "gc", "start_ns": 10, "dur_ns": 30, "step": 0},
            {"kind": "forward", "start_ns": 1000, "dur_ns": 10, "step": 0},
            {"kind": "gc", "start_ns": 1020, "dur_ns": 5, "step": 0},
            {"kind": "backward", "start_ns": 1030, "dur_ns": 10, "step": 0},
            {"kind": "gc", "start_ns": 5000, "dur_ns": 5, "step": 0},
        ],
        collective=[
            {"start_ns": 500, "end_ns": 520},
            {"start_ns": 1040, "end_ns": 1100},
            {"rank": 1, "start_ns": 500, "end_ns": 520},
            {"rank": 1, "start_ns": 1040, "end_ns": 1100},
        ],
    )
    windows = step_windows(trace)
    assert (windows.frame["end_ns"] - windows.frame["start_ns"]).tolist() == [100, 600]
    assert windows.select(trace.frame("span"))["start_ns"].tolist() == [1000, 1020, 1030]
    assert any("meshscope.probe.step()" in limit for limit in texts(windows.limits))


def test_what_was_recorded_after_the_last_border_is_reported():
    """Fails when most of a capture lies in no step, and nothing says so."""
    rows = steps(*((0, step, 10 * step, 10) for step in range(4)))
    updates = [{"kind": "optimizer", "start_ns": 41 + 10 * n, "dur_ns": 1} for n in range(20)]
    long = step_windows(trace_of(origin="meshscope", step=rows, span=updates))
    assert any("contain 20 updates of an optimizer" in limit for limit in texts(long.limits))
    short = step_windows(trace_of(origin="meshscope", step=rows, span=updates[:5]))
    assert not any("after the last finished step" in limit for limit in texts(short.limits))


def test_steps_with_their_own_clocks_do_not_overlap_on_the_common_line():
    """Events of two steps that both begin at zero would be added up as one."""
    windows = step_windows(
        trace_of(per_step_clock=True, step=steps((0, 7, 0, 10), (0, 8, 0, 30), (0, 9, 0, 5)))
    )
    start, end = windows.frame["start_ns"].tolist(), windows.frame["end_ns"].tolist()
    assert all(border <= begin for border, begin in zip(end[:-1], start[1:], strict=True))
    assert [e - s for s, e in zip(start, end, strict=True)] == [10, 30, 5]
    assert windows.step_time_ns == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("lengths", "reported"),
    [
        ([50] * 8 + [1700, 50], True),
        ([50] * 8 + [60, 50], False),
        ([50] * 99 + [200], False),
        ([50, 500] * 5, False),
        ([50] * 5 + ([500] + [50] * 9) * 4, False),
    ],
)
def test_single_long_steps_in_the_mean_are_reported(lengths, reported):
    """Fails when a step of compiling makes the mean what no step takes, and nothing says so."""
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    rows = [
        {"step": place, "start_ns": (end - length) * 1_000_000, "dur_ns": length * 1_000_000}
        for place, (end, length) in enumerate(zip(ends, lengths, strict=True))
    ]
    limits = [
        limit for limit in texts(step_windows(trace_of(step=rows)).limits) if "median" in limit
    ]
    assert bool(limits) == reported
    assert all("8 (1.70 s)" in limit and "50.0 ms on average" in limit for limit in limits)

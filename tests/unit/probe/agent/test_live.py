"""Figures of the present from records with answers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from meshscope.probe.agent.live import (
    WINDOW,
    RankFigures,
    RankFollower,
    common_ns,
    straggler_scores,
    union,
)
from meshscope.probe.schema.records import (
    COMPLETION_RECORD,
    P2P_RECORD,
    SPAN_CODES,
    SPAN_RECORD,
    STEP_RECORD,
)

MS = 1_000_000


def rows(record, *given):
    """Return records with the given fields; the others are zero."""
    found = np.zeros(len(given), record.numpy_dtype())
    for row, fields in zip(found, given, strict=True):
        for name, value in fields.items():
            row[name] = value
    return [found]


def span(step, kind, start_ms, dur_ms, stage=1):
    """Return the fields of a span."""
    times = {"start_ns": start_ms * MS, "dur_ns": dur_ms * MS}
    return {"step": step, "kind": SPAN_CODES[kind], "stage": stage, **times}


def step_of(step, start_ms, dur_ms, tokens=-1):
    """Return the fields of a step."""
    return {"step": step, "start_ns": start_ms * MS, "dur_ns": dur_ms * MS, "tokens": tokens}


@pytest.fixture
def follower():
    """Return a follower that has seen three steps: 10 ms each, 5 of work and 1 of waiting."""
    found = RankFollower()
    for step in range(3):
        begin = 10 * step
        found.add(
            {
                "span": rows(
                    SPAN_RECORD,
                    span(step, "forward", begin, 2),
                    span(step, "backward", begin + 3, 3),
                    span(step, "gc", begin + 4, 1),
                ),
                "p2p": rows(P2P_RECORD, {"slot_seq": step}),
                "completion": rows(
                    COMPLETION_RECORD,
                    {
                        "event_id": step,
                        "wait_start_ns": (begin + 6) * MS,
                        "wait_end_ns": (begin + 7) * MS,
                    },
                    {
                        "event_id": 999,
                        "wait_start_ns": (begin + 7) * MS,
                        "wait_end_ns": (begin + 9) * MS,
                    },
                ),
                "step": rows(STEP_RECORD, step_of(step, begin, 10, tokens=500)),
            }
        )
    return found


def test_step_work_and_bubble(follower):
    """Fails when other spans count as work, or a wait for another operation as the bubble."""
    figures = follower.figures(timed=True, piped=True)
    assert figures == RankFigures(
        step=2,
        step_time_s=0.01,
        tokens_per_s=pytest.approx(50_000),
        stage=1,
        work_s=0.005,
        bubble_frac=pytest.approx(0.1),
    )


@pytest.mark.parametrize(("steps", "known"), [(375, True), (420, False)])
def test_between_windows_that_are_recorded_the_last_one_tells(follower, steps, known):
    """Fails when the straggler score comes and goes, or stays for good once nothing is recorded."""
    for step in range(3, 3 + steps):
        follower.add({"step": rows(STEP_RECORD, step_of(step, 10 * step, 8))})
    figures = follower.figures(timed=True, piped=True)
    assert (figures.step, figures.step_time_s) == (2 + steps, 0.008)
    assert figures.work_s == (0.005 if known else None)
    assert figures.bubble_frac == (pytest.approx(0.1) if known else None)


def test_what_host_spans_cannot_tell_is_left_out(follower):
    """Fails when the time to launch kernels is shown as the work of a device."""
    figures = follower.figures(timed=False, piped=True)
    assert (figures.step_time_s, figures.work_s, figures.bubble_frac) == (0.01, None, None)
    assert follower.figures(timed=True, piped=False).bubble_frac is None


def device_times(*given):
    """Return records of how long the device took for spans: event and ms."""
    found = np.zeros(len(given), [("event_id", "<i8"), ("dur_ns", "<i8")])
    found["event_id"], found["dur_ns"] = [g[0] for g in given], [g[1] * MS for g in given]
    return [found]


def test_work_of_a_device_is_what_the_device_took():
    """Fails when a slow device cannot be distinguished from the others because its host is not slow."""
    follower = RankFollower()
    for step in range(4):
        spans = [
            span(step, kind, 10 * step, 1) | {"slot_seq": 10 * step + at}
            for at, kind in enumerate(("forward", "backward"))
        ]
        follower.add({"span": rows(SPAN_RECORD, *spans)})
        follower.add({"step": rows(STEP_RECORD, step_of(step, 10 * step, 10))})
    assert follower.figures(timed=False, piped=True).work_s is None
    # The device is behind: of the last step only one pass is known yet.
    follower.add({"device_time": device_times((10, 2), (11, 4), (20, 3), (21, 5), (30, 9))})
    figures = follower.figures(timed=False, piped=True)
    assert figures.work_s == pytest.approx(0.007)
    assert figures.bubble_frac is None


def test_nothing_is_known_before_a_whole_step():
    """Fails when a step of which only the end was seen is shown as a short one."""
    follower = RankFollower()
    assert follower.figures(timed=True, piped=True) is None
    follower.add({"step": rows(STEP_RECORD, step_of(7, 0, 10))})
    assert follower.figures(timed=True, piped=True) is None
    follower.add({"step": rows(STEP_RECORD, step_of(8, 10, 10))})
    figures = follower.figures(timed=True, piped=True)
    assert (figures.step, figures.tokens_per_s, figures.work_s) == (8, None, None)


def test_many_steps_between_two_looks():
    """Fails when a job of short steps has no work, because its spans came in one batch."""
    follower = RankFollower()
    follower.add(
        {
            "span": rows(SPAN_RECORD, *(span(n, "forward", 10 * n, 2 + n % 3) for n in range(50))),
            "step": rows(STEP_RECORD, *(step_of(n, 10 * n, 10) for n in range(50))),
        }
    )
    figures = follower.figures(timed=True, piped=True)
    assert (figures.step, figures.work_s) == (49, 0.003)
    assert figures.bubble_frac is None, "no wait was seen: it is not known, not none"


def test_spans_of_steps_that_never_end_are_dropped():
    """Fails when a job that marks no steps makes the agent grow."""
    follower = RankFollower()
    follower.add({"span": rows(SPAN_RECORD, *(span(n, "forward", n, 1) for n in range(100)))})
    assert len(follower._passes) <= 8


@pytest.mark.parametrize(
    ("intervals", "covered"),
    [
        ([], 0),
        ([(0, 4), (2, 6), (8, 9)], 7),
        ([(-5, 1), (9, 20)], 2),
        ([(3, 3), (5, 4)], 0),
        ([(0, 10), (1, 2)], 10),
    ],
)
def test_a_union_within_a_window(intervals, covered):
    """Fails when overlaps count twice or time outside the window counts."""
    assert common_ns(union(intervals), [(0, 10)]) == covered


def test_waits_in_a_pass_are_no_work():
    """Fails when the ranks that wait for a slow one in their backward work as long as it."""
    follower = RankFollower()
    for step in range(3):
        begin = 10 * step
        waits = [(begin + 4, begin + 6), (begin + 5, begin + 7), (begin + 8, begin + 9)]
        follower.add(
            {
                "span": rows(
                    SPAN_RECORD,
                    span(step, "forward", begin, 2),
                    span(step, "backward", begin + 3, 4),
                ),
                "completion": rows(
                    COMPLETION_RECORD,
                    *(
                        {"event_id": 7, "wait_start_ns": start * MS, "wait_end_ns": end * MS}
                        for start, end in waits
                    ),
                ),
                "step": rows(STEP_RECORD, step_of(step, begin, 10)),
            }
        )
    figures = follower.figures(timed=True, piped=False)
    assert figures.work_s == pytest.approx(0.003)


def figures_of(work_s, stage=0):
    """Return the figures of a rank that works so long."""
    return RankFigures(
        step=1, step_time_s=1, tokens_per_s=None, stage=stage, work_s=work_s, bubble_frac=None
    )


def test_a_rank_is_scored_against_the_others_of_its_stage():
    """Fails when a slow rank hides in its own median, or a heavy stage is called slow."""
    ranks = {n: figures_of(1.0) for n in range(3)} | {3: figures_of(1.5), 4: figures_of(3.0, 1)}
    assert straggler_scores(ranks) == pytest.approx({0: 0, 1: 0, 2: 0, 3: 0.5})


def test_two_ranks_have_no_score():
    """Fails when of two ranks that differ one is called slow."""
    assert straggler_scores({0: figures_of(1.0), 1: figures_of(2.0)}) == {}
    assert straggler_scores({n: figures_of(None) for n in range(4)}) == {}


def test_a_rank_that_records_less_is_not_scored_against_the_others():
    """Fails when a rank whose waits are not recorded any more is told to work longer for them."""
    ranks = {rank: figures_of(1.0) for rank in range(3)}
    ranks[3] = replace(figures_of(1.5), sees_waits=False)
    assert set(straggler_scores(ranks)) == {0, 1, 2}
    assert max(straggler_scores(ranks).values()) == pytest.approx(0)


def test_waits_that_are_recorded_no_more_are_not_seen(follower):
    """Fails when a rank that came down a level is compared as if its work had no waits in it."""
    assert follower.figures(timed=True, piped=False).sees_waits
    for step in range(3, 3 + WINDOW):
        spans = rows(SPAN_RECORD, span(step, "forward", 10 * step, 2))
        follower.add({"span": spans, "step": rows(STEP_RECORD, step_of(step, 10 * step, 10))})
    assert not follower.figures(timed=True, piped=False).sees_waits

"""Ideal bubbles, and what is read off spans when the run does not say."""

import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of

from meshscope.analyze.account.bubble import (
    microbatch_range,
    microbatches_of,
    pipeline_bubble,
    schedule_of,
)
from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.probe.schema.layout import ParallelLayout


def spans(order):
    """Return spans of one rank in the given order: F and B with the microbatch."""
    kinds = {"F": "forward", "B": "backward"}
    return [
        {"kind": kinds[word[0]], "microbatch": int(word[1]), "start_ns": 10 * at, "dur_ns": 10}
        for at, word in enumerate(order.split())
    ]


@pytest.mark.parametrize(
    ("order", "vpp", "schedule"),
    [
        ("F0 F1 F2 B0 B1 B2", 1, "gpipe"),
        ("F0 B0 F1 B1 F2 B2", 1, "1f1b"),
        ("F0 B0 F1 B1 F2 B2", 2, "interleaved-1f1b"),
    ],
)
def test_schedule_is_read_off_the_last_stage(order, vpp, schedule):
    """An imported trace would have no ideal to compare with, or the wrong one."""
    trace = trace_of(layout=ParallelLayout(pp=2, vpp=vpp), span=spans(order))
    assert schedule_of(trace) == schedule
    assert microbatches_of(trace) == 3


def test_a_job_without_a_pipeline_has_no_schedule():
    """Fails when the header of a plain data-parallel job names a pipeline schedule."""
    assert schedule_of(trace_of(layout=ParallelLayout(dp=2), span=spans("F0 F1 B0 B1"))) is None


def test_what_the_run_states_comes_first():
    """A user's own word would be overruled by a guess."""
    trace = trace_of(
        layout=ParallelLayout(pp=2),
        run={"schedule": "zb-h1", "microbatches": 12},
        span=spans("F0 B0"),
    )
    assert schedule_of(trace) == "zb-h1"
    assert microbatches_of(trace) == 12


def bubble_of(**job):
    """Return the bubble of a simulated job of equal stages."""
    trace = capture(Job(steps=3, **job), uniform(10 * MS, 20 * MS))
    windows = step_windows(trace)
    return pipeline_bubble(
        trace, build_ledger(trace, windows, communication_events(trace, windows))
    )


def test_measured_bubble_of_equal_stages_is_the_ideal_one():
    """Waiting that the schedule imposes would be blamed on somebody."""
    found = bubble_of(layout=ParallelLayout(pp=4), microbatches=8, wire_ns=0, optimizer_ns=0)
    assert found.ideal_frac == 3 / 11
    assert found.measured_frac == pytest.approx(3 / 11, abs=1e-12)
    assert found.by_stage["wait_frac"].tolist() == pytest.approx([3 / 11] * 4)


def test_one_stage_has_no_bubble_and_says_why():
    """A number would be shown where the question makes no sense."""
    found = bubble_of(layout=ParallelLayout(dp=2))
    assert found.measured_frac is None
    assert "one pipeline stage" in str(found.unknown_because)


def test_without_communication_waiting_is_unknown():
    """A pipeline of which only compute was recorded would seem to wait for nobody."""
    layout = ParallelLayout(pp=2)
    trace = trace_of(
        layout=layout,
        run={"schedule": "1f1b", "microbatches": 2},
        step=[{"rank": rank, "dur_ns": 100} for rank in (0, 1)],
        span=[{"rank": rank, "kind": "forward", "start_ns": 0, "dur_ns": 60} for rank in (0, 1)],
    )
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    found = pipeline_bubble(trace, build_ledger(trace, windows, events))
    assert found.measured_frac is None
    assert "no communication" in str(found.unknown_because)
    assert found.ideal_frac == 1 / 3
    assert found.by_stage["wait_frac"].isna().all()


def test_microbatches_are_those_of_a_finished_step():
    """Fails when passes that are counted on without the border of a step become microbatches."""
    passes = [
        {"kind": "forward", "step": step, "microbatch": number, "start_ns": 100 * step + number, "dur_ns": 1}
        for step, count in enumerate((2, 2, 7, 2, 30))
        for number in range(count)
    ]  # fmt: skip
    steps = [{"step": step, "start_ns": 100 * step, "dur_ns": 100} for step in range(4)]
    assert microbatches_of(trace_of(origin="meshscope", step=steps, span=passes)) == 2
    assert microbatches_of(trace_of(origin="meshscope", span=passes)) is None
    assert microbatches_of(trace_of(span=passes)) == 30


def test_steps_of_unlike_numbers_of_microbatches_have_a_range():
    """Fails when the most frequent number stands for steps of 2, 4 and 1 microbatches."""
    passes = [
        {"kind": "forward", "step": step, "microbatch": number, "start_ns": 100 * step + number, "dur_ns": 1}
        for step, count in enumerate((2, 4, 1, 2, 4, 1))
        for number in range(count)
    ]  # fmt: skip
    steps = [{"step": step, "start_ns": 100 * step, "dur_ns": 100} for step in range(6)]
    trace = trace_of(origin="meshscope", step=steps, span=passes)
    assert microbatches_of(trace) is None
    assert microbatch_range(trace) == (1, 4)

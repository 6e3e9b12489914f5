"""Errors of a source, and spans that several threads have in progress."""

import pytest

from meshscope.probe.hooks import base
from meshscope.probe.hooks.base import Activity, Capture, Place
from meshscope.probe.hooks.steps import StepHook
from meshscope.probe.recording.open_recorder import NullRecorder
from meshscope.probe.schema.terms import SpanKind
from meshscope.probe.settings.config import ProbeConfig


@pytest.fixture
def capture():
    """Return a capture that records nothing and allows three errors."""
    return Capture(NullRecorder(0), ProbeConfig(max_source_errors=3), lambda: None)


def test_errors_that_come_seldom_do_not_add_up(capture, monkeypatch, capfd):
    """Fails when ten accidents in the life of a job switch a source off, or fill its log."""
    clock = [0]
    monkeypatch.setattr(base, "now_ns", lambda: clock[0])
    source = capture.source("some")
    for hour in range(20):
        clock[0] = hour * 3_600_000_000_000
        source.failed(ValueError(f"at {hour}"))
    assert source.on
    assert capfd.readouterr().err.count("\n") == 3
    for _ in range(2):
        source.failed(ValueError("now"))
    assert not source.on


def test_what_fails_at_a_border_spares_the_rest_of_it(capture):
    """Fails when an error of one hook keeps levels and deep traces from their borders."""
    heard = []

    def fails():
        raise RuntimeError("dictionary changed size during iteration")

    hook = StepHook(capture, None, (fails, lambda: heard.append("border")), (fails,))
    hook.end_step(None)
    assert heard == ["border"]
    assert hook.source._errors == 2


def test_a_span_that_outlives_the_one_it_began_in():
    """Fails when a span of another thread brings a backward back that is over."""
    activity = Activity()
    outer, inner, last = (Place(kind) for kind in (SpanKind.BACKWARD, *[SpanKind.RECOMPUTE] * 2))
    before_outer = activity.enter(outer)
    before_inner = activity.enter(inner)
    activity.leave(outer, before_outer)
    before_last = activity.enter(last)
    activity.leave(inner, before_inner)
    assert activity.place is last
    activity.leave(last, before_last)
    assert (activity.place, activity.listen) == (None, True)
    assert activity._over == {}


def test_nested_spans_of_one_thread():
    """Fails when the end of an inner span ends the outer one."""
    activity = Activity()
    outer, inner = Place(SpanKind.BACKWARD), Place(SpanKind.RECOMPUTE)
    before_outer = activity.enter(outer)
    before_inner = activity.enter(inner)
    activity.leave(inner, before_inner)
    assert activity.place is outer
    activity.leave(outer, before_outer)
    assert activity.place is None

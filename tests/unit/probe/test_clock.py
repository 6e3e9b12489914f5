"""The clocks of the probe."""

import time

from meshscope.probe import clock


def test_pair_lies_between_readings_around_it():
    """Fails when a clock pair does not tell the same moment on both clocks."""
    before_ns, wall_before_ns = time.monotonic_ns(), time.time_ns()
    pair = clock.clock_pair()
    assert before_ns <= pair.monotonic_ns <= time.monotonic_ns()
    assert wall_before_ns <= pair.unix_ns <= time.time_ns()
    assert 0 <= pair.error_ns <= time.monotonic_ns() - before_ns


def test_least_disturbed_reading_wins(monkeypatch):
    """Fails when a reading that was interrupted for long becomes the clock pair."""
    readings = iter([0, 1000, 2000, 2010, 3000, 9000, 9500, 9900, 9910, 9990])
    monkeypatch.setattr(clock, "now_ns", lambda: next(readings))
    monkeypatch.setattr(clock, "unix_ns", lambda: 77)
    assert clock.clock_pair() == (2005, 77, 5)


def test_thread_clock_counts_only_this_threads_work():
    """Fails when sleeping counts as CPU time, so that a starved rank looks busy."""
    before_ns, begin_ns = clock.thread_cpu_ns(), clock.now_ns()
    time.sleep(0.05)
    assert clock.thread_cpu_ns() - before_ns < clock.now_ns() - begin_ns - 25_000_000

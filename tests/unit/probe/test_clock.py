"""The clocks of the probe."""

import os
import subprocess
import sys
import threading
import time

import pytest

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


BUSY_S = 0.6
BUSY = f"""
import os, time
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
print("runs", flush=True)
end = time.monotonic() + {BUSY_S} * 10
while time.monotonic() < end: pass
"""


@pytest.mark.skipif(
    clock.thread_queued_ns(threading.get_native_id()) is None, reason="the kernel does not count"
)
def test_waiting_for_a_processor_is_counted_and_sleeping_is_not():
    """Fails when a rank that shares its processor looks as if it slept, or one that sleeps as if it waited."""
    own, allowed = threading.get_native_id(), os.sched_getaffinity(0)
    before_ns = clock.thread_queued_ns(own)
    time.sleep(BUSY_S / 3)
    asleep_ns = clock.thread_queued_ns(own) - before_ns
    other = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        os.sched_setaffinity(0, {min(allowed)})
        before_ns, begin_ns, cpu_ns = (
            clock.thread_queued_ns(own),
            clock.now_ns(),
            clock.thread_cpu_ns(),
        )
        while clock.now_ns() - begin_ns < BUSY_S * 1e9:
            pass
        lost_ns = clock.now_ns() - begin_ns - (clock.thread_cpu_ns() - cpu_ns)
        queued_ns = clock.thread_queued_ns(own) - before_ns
    finally:
        os.sched_setaffinity(0, allowed)
        other.kill()
        other.wait()
        other.stdout.close()
    assert asleep_ns < BUSY_S / 6 * 1e9
    assert lost_ns > BUSY_S / 6 * 1e9
    assert abs(queued_ns - lost_ns) < 0.25 * lost_ns


def test_a_thread_that_is_not_there_has_no_queue():
    """Fails when the account of a window ends in an error because its thread is gone."""
    assert clock.thread_queued_ns(2**30) is None

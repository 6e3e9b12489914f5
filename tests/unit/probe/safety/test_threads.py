"""What wakes a thread of the probe, with real threads and signals."""

import signal
import threading
import time

import pytest

from meshscope.probe.safety.threads import Bell


def test_a_bell_that_was_rung_before_is_heard():
    """Who asked for a flush just before the writer waits would wait half a second for it."""
    bell = Bell()
    bell.ring()
    bell.ring()
    started = time.monotonic()
    bell.wait(5)
    assert time.monotonic() - started < 1
    bell.wait(0.05)
    assert time.monotonic() - started >= 0.05


def test_a_bell_wakes_who_waits():
    """An order of the first steps would be written half a second late."""
    bell, started = Bell(), time.monotonic()
    waiting = threading.Thread(target=bell.wait, args=(10,))
    waiting.start()
    bell.ring()
    waiting.join(5)
    assert not waiting.is_alive()
    assert time.monotonic() - started < 5


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that signal")
def test_a_signal_handler_may_ring_in_the_middle_of_a_ring():
    """A handler that saves and flushes would stop the training for good."""
    bell, rung = Bell(), []

    def handler(*_):
        bell.ring()
        rung.append(1)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            bell.ring()
            bell.wait(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(rung) > 20

"""A disk that hangs is waited for no longer than was said."""

import signal
import threading
from pathlib import Path

import pytest

from meshscope.probe.safety.bounded import within


def test_what_comes_in_time_is_returned():
    """Fails when an answer of the disk, or its refusal, does not reach who has asked."""
    assert within(60, lambda: 7) == 7
    assert within(60, lambda: None) is None
    with pytest.raises(FileNotFoundError):
        within(60, lambda: Path("/nowhere/at/all").stat())


def test_what_hangs_is_given_up_and_cleaned_up_later():
    """Fails when a training waits for ever, or what was opened after all stays open."""
    released, late, closed = threading.Event(), [], threading.Event()

    def slow():
        assert released.wait(60)
        return "files"

    def close(found):
        late.append(found)
        closed.set()

    with pytest.raises(TimeoutError, match="does not answer"):
        within(0.01, slow, close)
    assert late == []
    released.set()
    assert closed.wait(60)
    assert late == ["files"]


def test_signals_stay_with_who_waits():
    """Fails when the thread of the disk takes a signal that the training waits for."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    blocked = within(60, lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    assert signal.SIGTERM in blocked
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_without_a_thread_it_is_done_at_once(monkeypatch):
    """Fails when a system that has no thread to give ends the training."""

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert within(60, lambda: 7) == 7

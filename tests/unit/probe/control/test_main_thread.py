"""What another thread posts runs in the main thread, once or not at all."""

import signal
import threading
import time

import pytest

from meshscope.probe.control.main_thread import MainThreadJob


def from_another_thread(act):
    """Run something in a thread while this one runs Python; return its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    deadline = time.monotonic() + 10
    while thread.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found[0]


def test_it_runs_in_the_main_thread():
    """Fails when hooks would be changed while an operator is being dispatched."""
    ran_in = []
    job = MainThreadJob(lambda: ran_in.append(threading.current_thread()))
    assert from_another_thread(lambda: job.post() and job.wait(5))
    assert ran_in == [threading.main_thread()]
    assert job.error is None


def test_on_the_main_thread_it_runs_at_once():
    """Fails when the main thread waits for itself."""
    ran = []
    job = MainThreadJob(lambda: ran.append(1))
    assert job.post()
    assert ran == [1]


def test_many_jobs_all_run():
    """Fails when the interpreter's queue overflows and a job is lost."""
    ran = []
    jobs = [MainThreadJob(lambda number=number: ran.append(number)) for number in range(100)]
    assert from_another_thread(lambda: all(job.post() for job in jobs) and jobs[-1].wait(5))
    assert ran == list(range(100))


def test_an_error_stays_with_the_job():
    """Fails when an error of the probe surfaces in the middle of training code."""
    job = MainThreadJob(lambda: 1 / 0)
    assert from_another_thread(lambda: job.post() and job.wait(5))
    assert isinstance(job.error, ZeroDivisionError)


def test_what_a_signal_handler_raises_meanwhile_goes_on():
    """Fails when a deadline of the program is lost because its signal came during our work."""

    class DeadlineError(Exception):
        pass

    def handler(_signal, _frame):
        raise DeadlineError

    before = signal.signal(signal.SIGUSR1, handler)
    job = MainThreadJob(lambda: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(DeadlineError):
            from_another_thread(job.post)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert job.wait(5)
    assert isinstance(job.error, DeadlineError)


def test_a_cancelled_job_never_runs():
    """Fails when hooks go in after the request was called off."""
    ran = []
    job = MainThreadJob(lambda: ran.append(1))
    assert job.cancel()
    assert from_another_thread(lambda: job.post() and job.wait(5))
    assert ran == []
    assert not job.cancel()


@pytest.mark.parametrize("attempt", range(20))
def test_cancelling_races_with_running(attempt):
    """Fails when a job both runs and counts as cancelled, or neither."""
    ran = []
    job = MainThreadJob(lambda: ran.append(1))

    def act():
        job.post()
        time.sleep(0.0002 * attempt)
        was_open = job.cancel()
        assert job.wait(5)
        return was_open

    assert from_another_thread(act) == (ran == [])

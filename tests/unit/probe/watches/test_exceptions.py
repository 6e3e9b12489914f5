"""What is done when an exception ends the program, before its traceback is printed."""

import sys

import pytest

from meshscope.probe.watches.exceptions import ExceptionWatch


class Counted:
    """Counts errors."""

    def __init__(self):
        self.errors = []

    def failed(self, error):
        """Keep an error."""
        self.errors.append(error)


@pytest.fixture
def printed(monkeypatch):
    """Return what the hook before ours was given."""
    found = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: found.append(given))
    return found


def test_the_action_comes_before_the_traceback(printed):
    """A launcher would have killed the rank before it notes anything: the traceback takes a tenth of a second."""
    seen, error, before = [], ValueError("x"), sys.excepthook
    watch = ExceptionWatch(lambda one: seen.append((one, list(printed))), Counted())
    watch.start()
    sys.excepthook(ValueError, error, None)
    assert seen == [(error, [])]
    assert printed == [(ValueError, error, None)]
    watch.stop()
    assert sys.excepthook is before


def test_an_interrupt_is_no_failure_of_the_program(printed):
    """A user who presses Ctrl-C would be told that a rank has failed."""
    watch = ExceptionWatch(pytest.fail, Counted())
    watch.start()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert len(printed) == 1


def test_an_error_of_ours_is_counted_and_the_traceback_printed(printed):
    """The user would see our error in place of the program's."""

    def fail(_):
        raise OSError

    source = Counted()
    ExceptionWatch(fail, source).start()
    sys.excepthook(ValueError, ValueError(), None)
    assert len(printed) == len(source.errors) == 1


def test_who_stands_in_front_stays_and_we_cease(printed):
    """The hook of torch, which names the rank, would be lost with ours."""
    watch = ExceptionWatch(pytest.fail, Counted())
    watch.start()
    ours = sys.excepthook

    def front(*given):
        ours(*given)

    sys.excepthook = front
    watch.stop()
    assert sys.excepthook is front
    sys.excepthook(ValueError, ValueError(), None)
    assert len(printed) == 1

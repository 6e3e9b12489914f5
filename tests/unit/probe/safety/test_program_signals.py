"""What a signal handler of the program raises is distinguished from errors of the probe."""

import functools
import signal

import pytest

from meshscope.probe.hooks.base import Capture
from meshscope.probe.safety.program_signals import is_the_programs


class Handlers:
    """The forms that a handler may have."""

    def method(self, _signal, frame):
        """Raise, in a function that this one calls."""
        self.give_up(frame)

    def give_up(self, _frame):
        """Raise, and be no handler any more, as many a handler does first."""
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        raise TimeoutError

    def __call__(self, *_arguments):
        """Raise."""
        raise TimeoutError


def raised_by(act):
    """Return what a function raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        act()
    return caught.value


@pytest.fixture
def struck():
    """Return a function that is interrupted by a handler."""
    before = signal.getsignal(signal.SIGUSR1)

    def strike(handler):
        signal.signal(signal.SIGUSR1, handler)
        return raised_by(lambda: signal.raise_signal(signal.SIGUSR1))

    yield strike
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler",
    [Handlers().method, Handlers(), functools.partial(Handlers().method), lambda *_: 1 / 0],
    ids=["method", "object", "partial", "function"],
)
def test_every_form_of_handler_is_known(struck, handler):
    """Fails when the end of an alarm is taken for an error of the probe and is lost."""
    assert is_the_programs(struck(handler))


def test_errors_of_our_own_stay_ours():
    """Fails when an error of the probe reaches the training code."""
    assert not is_the_programs(raised_by(lambda: 1 / 0))
    assert not is_the_programs(raised_by(lambda: int("x")))
    assert is_the_programs(KeyboardInterrupt())


def test_a_source_does_not_keep_it(struck):
    """Fails when a hook counts what a handler raised as its own error, and training goes on."""
    source = Capture(None, None, lambda: None).source("steps")
    with pytest.raises(TimeoutError):
        source.failed(struck(Handlers()))
    assert source.on

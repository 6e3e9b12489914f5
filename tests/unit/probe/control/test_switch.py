"""Recording on and off, from a thread that is not the main one."""

import signal
import threading
import time

import pytest

from meshscope.probe.control.switch import _TAKE_LOOK_S, _TAKE_LOOKS, RecordingSwitch, State
from meshscope.probe.settings.config import MOST_CLOSE_S


class Parts:
    """Notes which part of a recording ran, and in which thread."""

    run_path = None
    rank = 0

    def __init__(self) -> None:
        self.coverage = {}
        self.ran = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda: self.ran.append((name, threading.current_thread().name))


@pytest.fixture
def made():
    """Return the recordings that a switch has made."""
    return []


@pytest.fixture
def switch(made):
    """Return a switch that is off."""

    def make():
        made.append(Parts())
        return made[-1]

    return RecordingSwitch(make, lambda _: None)


def spin_until(state, switch):
    """Run Python in the main thread until the switch is in a state."""
    deadline = time.monotonic() + 10
    while switch.state is not state:
        assert time.monotonic() < deadline, switch.state
        time.sleep(0.001)


def test_files_are_opened_apart_and_hooks_go_in_and_out_in_the_main_thread(switch, made):
    """Fails when slow work stops training, or hooks change under a running operator."""
    # The main thread may come by already before the request returns.
    assert switch.turn_on(0.0) in (State.STARTING, State.RECORDING)
    spin_until(State.RECORDING, switch)
    assert switch.turn_off(0.0) in (State.STOPPING, State.OFF)
    spin_until(State.OFF, switch)
    ran = [(name, thread == "MainThread") for name, thread in made[0].ran]
    assert ran == [
        ("prepare", False),
        ("hook", True),
        ("mute", True),
        ("unhook", True),
        ("finish", False),
    ]
    assert switch.recording is None


def test_a_second_request_changes_nothing(switch, made):
    """Fails when two users who ask at once get two recordings."""
    switch.turn_on(0.0)
    switch.turn_on(0.0)
    spin_until(State.RECORDING, switch)
    assert switch.turn_on(0.0) is State.RECORDING
    assert len(made) == 1
    switch.turn_off(0.0)
    spin_until(State.OFF, switch)


def test_a_start_that_waits_for_the_main_thread_can_be_called_off(switch, made):
    """Fails when hooks go in although recording was switched off before."""
    held = threading.Event()

    def request():
        time.sleep(0.1)
        switch.turn_on(0.1)
        switch.turn_off(0.1)
        held.set()

    thread = threading.Thread(target=request)
    thread.start()
    # The main thread waits in C code meanwhile, as in a device synchronisation.
    held.wait(10)
    thread.join()
    spin_until(State.OFF, switch)
    assert [name for name, _ in made[0].ran] == ["prepare", "finish"]


def test_an_error_is_reported_and_leaves_it_off(made):
    """Fails when a failed start leaves the switch stuck, or says nothing."""

    def fail():
        raise OSError("no room")

    switch = RecordingSwitch(fail, lambda _: None)
    switch.turn_on(1.0)
    spin_until(State.OFF, switch)
    assert switch.error == "OSError: no room"
    assert switch.turn_off(0.0) is State.OFF


def test_a_signal_handler_that_raises_while_the_hooks_go_in(made):
    """Fails when what the program's handler raises is lost, or leaves hooks or the switch half in."""

    class Struck(Parts):
        def hook(self):
            super().__getattr__("hook")()
            signal.raise_signal(signal.SIGUSR1)

    def make():
        made.append(Parts() if made else Struck())
        return made[-1]

    def handler(_signal, _frame):
        raise InterruptedError("the node is wanted back")

    def start():
        switch.turn_on(0.0)
        spin_until(State.RECORDING, switch)

    switch = RecordingSwitch(make, lambda _: None)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(InterruptedError, match="wanted back"):
            start()
    finally:
        signal.signal(signal.SIGUSR1, before)
    spin_until(State.OFF, switch)
    assert switch.error == "InterruptedError: the node is wanted back"
    assert [name for name, _ in made[0].ran] == ["prepare", "hook", "unhook", "finish"]
    start()
    assert switch.error == ""
    switch.turn_off(0.0)
    spin_until(State.OFF, switch)


def test_what_follows_is_called_when_all_is_closed(switch):
    """Fails when the socket is not removed after recording was off already, or too early."""
    called = []
    switch.turn_off(0.0, lambda: called.append(switch.state))
    switch.turn_on(0.0)
    spin_until(State.RECORDING, switch)
    switch.turn_off(0.0, lambda: called.append(switch.state))
    spin_until(State.OFF, switch)
    deadline = time.monotonic() + 5
    while len(called) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert called == [State.OFF, State.OFF]


@pytest.mark.parametrize("begun", ["turn_on", "turn_off"])
def test_the_main_thread_can_end_it_whatever_another_thread_has_begun(switch, made, begun):
    """Fails when detaching waits for a thread that waits for it, or leaves hooks in."""
    if begun == "turn_off":
        switch.turn_on(0.0)
        spin_until(State.RECORDING, switch)
    getattr(switch, begun)(0.0)
    if (taken := switch.take()) is not None:
        # The start was over before: then its end is ours.
        assert begun == "turn_on"
        taken.unhook()
        taken.finish()
        switch.adopt(None)
    assert switch.state is State.OFF
    names = [name for name, _ in made[0].ran]
    assert names.count("hook") == names.count("unhook")
    assert names[-1] == "finish"
    assert switch.take() is None


def test_a_start_that_is_called_off_while_the_hooks_go_in_is_ended(made):
    """Fails when what is called off at the last moment goes on to record."""
    began, called_off = threading.Event(), threading.Event()

    class Slow(Parts):
        def hook(self):
            self.ran.append(("hook", ""))
            began.set()
            called_off.wait(10)

    def make():
        made.append(Slow())
        return made[-1]

    switch = RecordingSwitch(make, lambda _: None)

    def call_off():
        began.wait(10)
        # From another thread: the main one puts the hooks in meanwhile.
        switch.turn_off(0.0)
        called_off.set()

    thread = threading.Thread(target=call_off)
    thread.start()
    switch.turn_on(0.0)
    spin_until(State.OFF, switch)
    thread.join()
    assert [name for name, _ in made[0].ran] == ["prepare", "hook", "unhook", "finish"]


def test_a_recording_that_was_taken_is_the_callers_to_close(switch, made):
    """Fails when a recording is closed twice, or by a thread that comes late."""
    recording = Parts()
    switch.adopt(recording)
    assert switch.take() is recording
    assert switch.take() is None
    switch.adopt(None)
    assert switch.state is State.OFF
    assert (made, recording.ran) == ([], [])


def test_a_recording_that_is_being_closed_is_waited_for_as_long_as_that_takes():
    """Fails if a process goes on while the files of its recording are still being closed."""
    assert _TAKE_LOOKS * _TAKE_LOOK_S > MOST_CLOSE_S


def test_a_change_without_a_thread_can_be_asked_for_again(switch, made, monkeypatch):
    """Fails when a refused thread leaves a rank that answers "starting" or "stopping" for ever."""

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("meshscope.probe.control.switch.start_deaf", refused)
        assert switch.turn_on(0.0) is State.OFF
    assert switch.error == "no thread for the change: can't start new thread"
    switch.turn_on(0.0)
    spin_until(State.RECORDING, switch)
    with monkeypatch.context() as patched:
        patched.setattr("meshscope.probe.control.switch.start_deaf", refused)
        assert switch.turn_off(0.0) is State.RECORDING
    assert "mute" not in dict(made[0].ran), "it says that it records"
    switch.turn_off(0.0)
    spin_until(State.OFF, switch)
    assert [name for name, _ in made[0].ran].index("mute") == len(made[0].ran) - 3
    assert switch.error == ""

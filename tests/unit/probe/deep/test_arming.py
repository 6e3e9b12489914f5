"""Steps that are agreed with ranks, and how that is taken back."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from meshscope.probe.control.rank_control import RankControl
from meshscope.probe.control.switch import RecordingSwitch
from meshscope.probe.deep import arming
from meshscope.probe.deep.collecting import collect
from meshscope.probe.deep.rank_traces import How
from meshscope.probe.listeners import StepListeners
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.session.verbs import VERB_MAKERS

PATIENCE_S = 60


class Training:
    """A rank in this process that stands at step 5 until it is told to go on."""

    def __init__(self, run_path, environment):
        """Open its socket."""
        self.run_path, self.environment = run_path, environment
        self.listeners = StepListeners()
        self.control = RankControl(RecordingSwitch(lambda: None, lambda _: None), self.listeners)
        self.control.open(run_path, 0, VERB_MAKERS, environment)
        assert self.control.missing == ""
        self.listeners.ended(5, pytest.fail)

    def arm(self, first_step=1000):
        """Agree on two steps that are far ahead."""
        return arming.arm(
            self.run_path, 2, self.environment, first_step=first_step, how=How.IN_PROCESS
        )

    def command(self, *options):
        """Start ``meshscope arm``, as a terminal does: no signal is ignored, whoever runs the tests."""
        command = [sys.executable, "-m", "meshscope", "arm", "--run", self.run_path, *options]
        return subprocess.Popen(
            command,
            env=self.environment,
            text=True,
            stdout=-1,
            stderr=subprocess.PIPE,
            preexec_fn=heed_signals,
        )


def heed_signals():
    """Give the signals of a terminal back the action that nohup and background jobs take away."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def training(run_path, short_dir, monkeypatch):
    """Return a rank that can be asked."""
    monkeypatch.setattr(arming, "_LOOK_S", 0.1)
    found = Training(run_path, {**os.environ, "XDG_RUNTIME_DIR": str(short_dir)})
    yield found
    found.control.close()


def test_a_job_that_stands_still_is_not_waited_for_for_ever(training):
    """Fails if a command never ends because the training hangs before the steps."""
    armed = training.arm()
    collected = collect(training.run_path, armed, 1.0)
    assert "stands at step 5" in collected.failed[0]
    training.arm()


def test_a_job_that_goes_on_is_waited_for(training):
    """Fails if steps that are further away than the timeout are given up."""
    armed = training.arm()
    thread = threading.Thread(target=lambda: collected.append(collect(training.run_path, armed, 1)))
    collected = []
    thread.start()
    for step in range(6, 11):
        time.sleep(0.4)
        training.listeners.ended(step, pytest.fail)
    assert collected == []
    thread.join(PATIENCE_S)
    assert "stands at step 10" in collected[0].failed[0]


def test_who_leaves_while_ranks_agree_takes_back_what_they_promised(training, monkeypatch):
    """Fails if an interrupted command leaves a promise that blocks the next one."""
    order = arming.order

    def interrupted(endpoints, verb, *rest):
        if verb == "commit":
            raise KeyboardInterrupt
        return order(endpoints, verb, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(arming, "order", interrupted)
        with pytest.raises(KeyboardInterrupt):
            training.arm()
    training.arm()


def test_what_is_on_its_way_is_named_with_what_calls_it_off(training):
    """Fails if a user is told to disarm and not how."""
    training.arm()
    with pytest.raises(ConfigError, match="--disarm"):
        training.arm()
    outcome = arming.disarm_run(training.run_path, training.environment)
    assert outcome.done[0]["called_off"] is True
    training.arm()


@pytest.mark.sampled(keep=("15",))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_calls_off_its_order(training, number):
    """Fails if Ctrl-C, a timeout or a lost terminal leaves ranks that record for nobody."""
    command = training.command("--first-step", "1000000", "--in-process")
    assert "1 ranks record steps" in command.stderr.readline()
    command.send_signal(number)
    _, said = command.communicate(timeout=PATIENCE_S)
    assert command.returncode != 0
    assert "called off" in said
    assert "Traceback" not in said
    training.arm()


def test_an_order_of_a_killed_command_can_be_called_off(training):
    """Fails if no command takes back what a killed one has left."""
    training.arm()
    command = training.command("--disarm")
    said, _ = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, said) == (0, "called off on ranks 0\n")
    training.arm()

"""A rank that is asked for a deep trace: promise, recording, and what can go wrong."""

import json
import os
import signal
import threading
import time

import pytest
import torch

from meshscope.probe.compat.absent import UnsupportedError
from meshscope.probe.compat.profiler import kineto_iterations
from meshscope.probe.control.rank_control import RankControl
from meshscope.probe.control.switch import RecordingSwitch
from meshscope.probe.control.verbs import Refusal
from meshscope.probe.deep import in_process, rank_traces
from meshscope.probe.deep.rank_traces import How, RankTraces, Stage
from meshscope.probe.deep.sealing import is_complete, raw_traces
from meshscope.probe.listeners import StepListeners
from meshscope.probe.safety.program_signals import pass_on
from meshscope.probe.schema.deep_trace import TraceName


class Rank:
    """The control of a rank whose steps the test ends."""

    def __init__(self, run_path):
        """Begin in step 5."""
        self.listeners = StepListeners()
        self.control = RankControl(RecordingSwitch(lambda: None, lambda _: None), self.listeners)
        self.control.run_path, self.control.rank = run_path, 0
        self.traces = RankTraces(self.control)
        self.errors = []
        self.asked_ns = []
        self.step = 5
        self.listeners.ended(5, self.errors.append)

    def prepare(self, first, steps=2, ticket="t", how=How.IN_PROCESS):
        """Ask for a promise."""
        return self.traces.prepare(
            {"ticket": ticket, "first_step": first, "steps": steps, "how": how.value}
        )

    def stage(self, ticket="t"):
        """Return how far the trace is."""
        return self.traces.traced({"ticket": ticket})["stage"]

    def train(self, steps=1):
        """Do some work in each of the next steps and end it."""
        for _ in range(steps):
            torch.ones(4).mul(self.step)
            self.step += 1
            self.asked_ns.append(self.listeners.ended(self.step, self.errors.append))


@pytest.fixture
def rank(run_path):
    """Return a rank in step 5."""
    found = Rank(run_path)
    yield found
    for thread in threading.enumerate():
        if thread.name == "meshscope-trace":
            thread.join()
    assert found.errors == []


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11 says so, once
def test_just_the_steps_that_were_promised_are_recorded(rank, run_path):
    """Fails if a trace begins early, ends late, or is not there at the end."""
    rank.prepare(7, 2)
    rank.traces.commit({"ticket": "t"})
    rank.train()
    assert rank.stage() == Stage.COMMITTED
    rank.train()
    assert rank.stage() == Stage.RECORDING
    rank.train(2)
    deadline = time.monotonic() + 30
    while rank.stage() == Stage.WRITING and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rank.stage() == Stage.WRITTEN
    (raw,) = raw_traces(run_path)
    assert (raw.rank, raw.name, raw.pid) == (0, TraceName(7, 8, "t"), os.getpid())
    assert is_complete(raw.path)
    events = json.loads(raw.path.read_text())["traceEvents"]
    assert sum(event.get("name") == "aten::mul" for event in events) == 2
    assert rank.traces.traced({"ticket": "t"})["stall_ns"] > 0


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_what_a_trace_takes_is_no_cost_of_the_hooks(rank):
    """A trace of minutes made the probe record one step in a hundred afterwards."""
    rank.prepare(7, 2)
    rank.traces.commit({"ticket": "t"})
    rank.train(5)
    # It starts as step 7 begins, and stops as step 9 does.
    assert [taken > 0 for taken in rank.asked_ns] == [False, True, False, True, False]


def test_a_promise_that_nobody_held_it_to_is_forgotten(rank, run_path):
    """Fails if a rank records although another one could not."""
    rank.prepare(7)
    rank.train(3)
    assert rank.stage() == Stage.MISSED
    with pytest.raises(Refusal, match="begun already"):
        rank.traces.commit({"ticket": "t"})
    assert list(raw_traces(run_path)) == []
    rank.prepare(20, ticket="next")


def test_a_promise_can_be_taken_back_at_any_time(rank, run_path):
    """Fails if a recording cannot be stopped, or leaves the profiler on."""
    rank.prepare(6)
    rank.traces.commit({"ticket": "t"})
    rank.train()
    assert rank.stage() == Stage.RECORDING
    rank.traces.disarm({"ticket": "t"})
    rank.train()
    assert not torch._C._autograd._profiler_enabled()
    assert list(raw_traces(run_path)) == []


@pytest.mark.parametrize("is_called_off", [False, True])
def test_a_recording_that_is_switched_off_ends_its_trace(rank, run_path, is_called_off):
    """Fails if the profiler runs on until memory is full, as no border comes any more to stop it."""
    rank.prepare(6)
    rank.traces.commit({"ticket": "t"})
    rank.train()
    assert torch._C._autograd._profiler_enabled()
    if is_called_off:
        rank.traces.disarm({"ticket": "t"})
    rank.listeners.hooks_gone(rank.errors.append)
    assert not torch._C._autograd._profiler_enabled()
    assert rank.stage() == Stage.MISSED
    assert list(raw_traces(run_path)) == []
    rank.prepare(9, ticket="next")
    rank.listeners.hooks_gone(rank.errors.append)
    assert rank.stage("next") == Stage.MISSED, "it would be waited for"


def test_steps_that_have_begun_are_refused(rank):
    """Fails if ranks record different steps because one was ahead."""
    with pytest.raises(Refusal, match="step 5 has begun"):
        rank.prepare(5)
    rank.prepare(9)
    with pytest.raises(Refusal, match="on its way"):
        rank.prepare(12, ticket="other")


def test_the_profiler_of_the_training_code_is_left_alone(rank):
    """Fails if a deep trace breaks the profiling that the user does."""
    rank.prepare(6)
    rank.traces.commit({"ticket": "t"})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        rank.train(2)
    assert rank.stage() == Stage.FAILED
    assert "another profiler" in rank.traces.traced({"ticket": "t"})["error"]
    assert any(event.key == "aten::mul" for event in own.key_averages())


def test_without_the_client_of_kineto_its_way_is_refused(rank):
    """Fails if a rank promises what nobody in it can do."""
    with pytest.raises(Refusal, match="daemon client is off"):
        rank.prepare(9, how=How.DAEMON)


@pytest.mark.parametrize("each", [1, 3])
def test_iterations_of_kineto_follow_the_steps(monkeypatch, each):
    """Fails if several optimizers a step shift what Kineto records."""
    counts = rank_traces._KinetoCounts()
    for step, count in ((27, 50), (28, 50 + each)):
        monkeypatch.setattr(rank_traces, "kineto_iterations", lambda count=count: count)
        counts.note(step)
    # Its iterations are counted from 0, and 28 begins with 50 + each of them over.
    expected = {"first_iteration": 50 + each - 1 + each * 3, "iterations": each * 2}
    assert counts.iterations(TraceName(31, 32, "t")) == expected


def test_a_count_that_stands_still_is_none():
    """Fails if a wrong iteration is ordered where the client of Kineto is off."""
    with pytest.raises(UnsupportedError):
        kineto_iterations()
    with pytest.raises(Refusal, match="not counted"):
        rank_traces._KinetoCounts().iterations(TraceName(31, 32, "t"))


def test_a_profile_that_the_training_code_begins_meanwhile_is_whole(rank):
    """Fails if a deep trace under way costs the user's own profile its events, or is reported as written."""
    rank.prepare(6, 3)
    rank.traces.commit({"ticket": "t"})
    rank.train(2)
    assert rank.stage() == Stage.RECORDING
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        rank.train(5)
    muls = [event for event in own.events() if event.name == "aten::mul"]
    assert len(muls) == 5
    assert rank.stage() == Stage.FAILED
    assert "profile itself" in rank.traces.traced({"ticket": "t"})["error"]
    assert "prepare" not in torch.autograd.profiler.profile._prepare_trace.__qualname__.split(".")


def test_a_rank_without_a_folder_for_its_trace_refuses_and_hears_the_next_request(rank, run_path):
    """Fails if a disk that refuses a folder is met in the training thread, or deafens the rank."""
    taken = run_path / "rank00000" / "traces"
    taken.write_text("x")
    with pytest.raises(Refusal, match="no folder for the trace"):
        rank.prepare(7)
    taken.unlink()
    rank.prepare(7, ticket="next")
    rank.traces.commit({"ticket": "next"})
    rank.train(2)
    assert rank.stage("next") == Stage.RECORDING
    rank.traces.disarm({"ticket": "next"})
    rank.train()


def test_an_error_at_a_border_ends_that_trace_and_no_other(rank, monkeypatch):
    """Fails if one failed trace leaves its stage as it was and the rank deaf."""

    def broken(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(rank_traces, "InProcessTrace", broken)
        rank.prepare(6)
        rank.traces.commit({"ticket": "t"})
        rank.train()
    assert rank.stage() == Stage.FAILED
    assert "No space" in rank.traces.traced({"ticket": "t"})["error"]
    rank.prepare(9, ticket="next")
    rank.train(4)
    assert rank.stage("next") == Stage.MISSED


def test_a_promise_can_be_taken_back_by_who_does_not_know_its_ticket(rank):
    """Fails if an order of somebody who has left blocks every later one."""
    assert rank.traces.disarm({"ticket": ""})["called_off"] is False
    rank.prepare(1_000_000)
    assert rank.traces.disarm({"ticket": ""})["called_off"] is True
    rank.prepare(12, ticket="other")


class AlarmError(Exception):
    """What a handler of the program raises."""


@pytest.fixture
def strike(monkeypatch):
    """Return a function that has a call of ours interrupted by the program's handler, once."""

    def ring(_signal, _frame):
        raise AlarmError

    def strike(owner, name, *, after):
        original, left = getattr(owner, name), [1]

        def struck(*args, **kwargs):
            found = original(*args, **kwargs) if after else None
            if left and left.pop():
                signal.raise_signal(signal.SIGUSR1)
            return found if after else original(*args, **kwargs)

        monkeypatch.setattr(owner, name, struck)

    before = signal.signal(signal.SIGUSR1, ring)
    yield strike
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["start", "stop"])
@pytest.mark.parametrize("is_called_off", [False, True])
def test_what_a_handler_of_the_program_raises_reaches_the_training(
    rank, strike, name, after, is_called_off
):
    """Fails when the end of an alarm is kept from the training, or leaves the profiler on."""
    strike(torch.profiler.profile, name, after=after)
    rank.prepare(6)
    rank.traces.commit({"ticket": "t"})

    def train():
        for step in range(6, 10):
            if step == 7 and is_called_off:
                rank.traces.disarm({"ticket": "t"})
            rank.listeners.ended(step, pass_on)

    with pytest.raises(AlarmError):
        train()
    for step in (10, 11):
        rank.listeners.ended(step, rank.errors.append)
    assert not torch._C._autograd._profiler_enabled()
    assert rank.stage() in (Stage.FAILED, Stage.MISSED)
    rank.step = 11
    rank.prepare(13, ticket="next")
    rank.traces.commit({"ticket": "next"})
    rank.train(2)
    assert rank.stage("next") == Stage.RECORDING, "it listens no more"
    rank.train(3)


def test_a_trace_that_is_called_off_ends_though_another_follows_at_once(rank, run_path):
    """Fails when a profiler that nobody asks about runs on until memory is full."""
    rank.prepare(6)
    rank.traces.commit({"ticket": "t"})
    rank.train()
    rank.traces.disarm({"ticket": "t"})
    rank.prepare(9, ticket="next")
    rank.traces.commit({"ticket": "next"})
    assert torch._C._autograd._profiler_enabled()
    rank.train()
    assert not torch._C._autograd._profiler_enabled()
    rank.train(2)
    assert rank.stage("next") == Stage.RECORDING
    rank.train(2)
    deadline = time.monotonic() + 30
    while rank.stage("next") == Stage.WRITING and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rank.stage("next") == Stage.WRITTEN


def test_an_order_that_comes_while_the_last_one_ends_is_heard(rank, monkeypatch):
    """Fails when a rank takes its ear off the borders for an order that is over, and misses the next."""
    advance = rank.traces._advance

    def overtaken(order, step):
        advance(order, step)
        if order.stage is Stage.MISSED:
            rank.prepare(20, ticket="next")

    monkeypatch.setattr(rank.traces, "_advance", overtaken)
    rank.prepare(6)
    rank.train(3)
    rank.traces.commit({"ticket": "next"})
    rank.train(12)
    assert rank.stage("next") == Stage.RECORDING
    rank.train(3)


def test_without_a_thread_the_trace_fails_in_words(rank, monkeypatch):
    """Fails when a trace that nobody writes is waited for."""

    def refused(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(in_process, "start_deaf", refused)
    rank.prepare(6)
    rank.traces.commit({"ticket": "t"})
    rank.train(4)
    assert rank.stage() == Stage.FAILED
    assert rank.traces.traced({"ticket": "t"})["error"].startswith("no thread to write it")

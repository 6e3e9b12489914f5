"""A rank that is controlled: attach, level, detach, and what is left of us afterwards."""

import atexit
import gc
import os
import socket
import threading
import time

import pyarrow  # noqa: F401 - so that its own exit handlers are there from the start
import pytest
import torch
from tests.process_traces import differences, differences_that_last, traces_of_us

from meshscope import probe
from meshscope.probe import api
from meshscope.probe.control.client import Endpoint, ask, ask_all
from meshscope.probe.control.finding import ranks_of_run
from meshscope.probe.control.messages import MOST_BYTES, encode_request
from meshscope.probe.launching import running_process
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.rundir import create_run

CYCLES = 25


@pytest.fixture
def run(tmp_path, short_dir, monkeypatch):
    """Return a new run whose rank 0 is this process, with its socket in the test's folder."""
    path = create_run(tmp_path, "run-1", {"world_size": 1})
    for name, value in {
        "XDG_RUNTIME_DIR": str(short_dir),
        "MESHSCOPE_RUN_DIR": str(path),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    yield path
    probe.detach()


class Trainer:
    """Trains a tiny model in the main thread while another thread talks to the socket."""

    def __init__(self):
        """Make the model."""
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses = []

    def step(self):
        """Train one step and return the bits of its loss."""
        loss = self.model(torch.ones(2, 4)).square().sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())
        return self.losses[-1]

    def train_while(self, act):
        """Train until another thread has done something; return its result."""
        found = []
        thread = threading.Thread(target=lambda: found.append(act()))
        thread.start()
        while thread.is_alive():
            self.step()
            # Stands for the device: without it the other thread waits for the interpreter.
            time.sleep(0.0005)
        thread.join()
        return found[0]


def ask_until(endpoint, verb, fields, state):
    """Ask for something and wait until the rank is in a state; return its status."""
    reply = ask(endpoint.path, verb, fields)
    deadline = time.monotonic() + 20
    while reply.result.get("state") != state:
        assert reply.ok, reply.error
        assert time.monotonic() < deadline, reply.result
        time.sleep(0.002)
        reply = ask(endpoint.path, "status", {})
    return reply.result


def traces_after_answers(endpoint):
    """Return what we are in this process once the connections of earlier requests are closed.

    An answer arrives before the rank closes its end; connections are served one after
    the other, so the end of a new one comes after the ends of all before.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(20)
        connection.connect(str(endpoint.path))
        connection.send(encode_request("status", {}))
        assert connection.recv(MOST_BYTES)
        assert connection.recv(1) == b""
    return traces_of_us()


def endpoint_of(run):
    """Return the socket of this process's rank."""
    (endpoint,) = ranks_of_run(run, os.environ).here
    return endpoint


@pytest.fixture
def at_exit(monkeypatch):
    """Return the functions that are called at exit, of those registered from now on."""
    registered = []
    register, unregister = atexit.register, atexit.unregister

    def note(function, *args, **kwargs):
        if function.__module__.startswith("meshscope."):
            registered.append(function)
        return register(function, *args, **kwargs)

    def forget(function):
        registered[:] = [kept for kept in registered if kept != function]
        unregister(function)

    monkeypatch.setattr(atexit, "register", note)
    monkeypatch.setattr(atexit, "unregister", forget)
    return registered


def test_attach_and_detach_leave_nothing(run, at_exit):
    """Fails when a hook, thread, descriptor, finder, handler or variable outlives detaching."""
    trainer = Trainer()
    trainer.step()
    bare = traces_of_us()
    api.stand_by()
    dormant = traces_of_us()
    assert differences(bare, dormant).keys() == {"threads", "files"}
    assert len(at_exit) == 1
    endpoint = endpoint_of(run)
    trainer.train_while(lambda: ask_until(endpoint, "attach", {}, "recording"))
    during = differences(dormant, traces_of_us())
    assert {"functions", "optimizer", "dispatcher", "gc", "finders", "threads"} <= during.keys()
    trainer.train_while(lambda: ask_until(endpoint, "detach", {}, "off"))
    assert differences(dormant, traces_after_answers(endpoint)) == {}
    assert len(at_exit) == 1
    trainer.train_while(lambda: ask(endpoint.path, "detach", {"remove": True}))
    assert differences_that_last(bare) == {}
    assert at_exit == []
    assert not endpoint.path.parent.exists()
    assert not (run / "control").exists()


def test_training_does_not_notice(run):
    """Fails when attaching in the middle changes one bit of a loss."""
    api.stand_by()
    endpoint, watched = endpoint_of(run), Trainer()
    for _ in range(10):
        watched.step()
    for verb, state in (("attach", "recording"), ("detach", "off"), ("attach", "recording")):
        watched.train_while(lambda verb=verb, state=state: ask_until(endpoint, verb, {}, state))
        for _ in range(10):
            watched.step()
    probe.detach()
    alone = Trainer()
    assert watched.losses == [alone.step() for _ in watched.losses]
    assert read_run(run).tables["step"].num_rows >= 20


def test_levels_and_requests_are_in_the_capture(run):
    """Fails when a change of level is not obeyed, or who asked is not recorded."""
    api.stand_by()
    endpoint, trainer = endpoint_of(run), Trainer()
    trainer.train_while(lambda: ask_until(endpoint, "attach", {}, "recording"))
    for _ in range(5):
        trainer.step()
    step = ask(endpoint.path, "status", {}).result["step"]
    running_process = ask(endpoint.path, "level", {"level": "steps", "first_step": step})
    assert running_process.error == f"step {step} has begun already"
    assert ask(endpoint.path, "level", {"level": "steps", "first_step": step + 2}).ok
    for _ in range(6):
        trainer.step()
    assert ask(endpoint.path, "flush", {}).ok
    probe.detach()
    capture = read_run(run)
    spans = capture.tables["span"].to_pandas()
    assert spans[spans["kind"] == "forward"]["step"].max() == step + 1
    assert capture.tables["step"].column("step").to_pylist()[-1] == step + 5
    requests = capture.rank_manifests[0]["annotations"]["control.requests"]
    assert [request["verb"] for request in requests if request["verb"] != "status"] == [
        "attach",
        "level",
        "level",
        "flush",
    ]
    assert {request["uid"] for request in requests} == {os.geteuid()}


def test_a_process_can_be_attached_from_a_thread_of_ours(run):
    """Fails when an injected script does not get the probe to record."""
    trainer = Trainer()
    trainer.train_while(running_process.begin)
    endpoint = endpoint_of(run)
    trainer.train_while(lambda: ask_until(endpoint, "status", {}, "recording"))
    trainer.step()
    probe.detach()
    manifest = read_run(run).rank_manifests[0]
    assert manifest["annotations"]["attached_while_running"] is True


def test_nothing_is_recorded_where_that_is_forbidden(run):
    """Fails when a request overrides the file that forbids to record."""
    api.stand_by()
    (run / "disable").touch()
    reply = ask(endpoint_of(run).path, "attach", {})
    assert not reply.ok
    assert reply.error.startswith("there is a file 'disable'")
    assert probe.attach(run) is None


def test_a_disable_file_stops_what_is_recorded(run, monkeypatch):
    """Fails when a running rank goes on recording after the file has appeared."""
    monkeypatch.setattr("meshscope.probe.job.kill_switch.LOOK_NS", 10_000_000)
    session, trainer = probe.attach(run), Trainer()
    (run / "disable").touch()
    deadline = time.monotonic() + 20
    while api._attached is not None:
        trainer.step()
        assert time.monotonic() < deadline
    assert session is not None
    assert ask(endpoint_of(run).path, "status", {}).result["state"] in ("stopping", "off")


def test_levels_need_a_recording(run):
    """Fails when a dormant rank accepts what it cannot do."""
    api.stand_by()
    path = endpoint_of(run).path
    for verb, fields in (("level", {"level": "steps", "first_step": 5}), ("flush", {})):
        assert ask(path, verb, fields).error == "nothing is recorded here; attach first"


def test_no_socket_where_nobody_wants_one(run, monkeypatch):
    """Fails when the setting that closes the socket is not obeyed."""
    monkeypatch.setenv("MESHSCOPE_CONTROL", "0")
    api.stand_by()
    probe.attach(run)
    assert ranks_of_run(run, os.environ).here == []


def test_a_place_without_privacy_gives_no_socket_but_records(run, monkeypatch, capfd):
    """Fails when a missing socket keeps a rank from recording, or is not explained."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr(
        "meshscope.probe.control.directory.base_directories", lambda _: [run / "absent" / "a"]
    )
    session = probe.attach(run)
    Trainer().step()
    assert session is not None
    assert "rank 0 has no control socket: no private directory" in capfd.readouterr().err
    probe.detach()
    assert read_run(run).tables["step"].num_rows == 1


def resident_bytes():
    """Return the resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.sampled(keep=("some",))
@pytest.mark.parametrize(
    "cycles", [CYCLES, pytest.param(1000, marks=pytest.mark.slow)], ids=["some", "thousand"]
)
def test_cycles_of_attach_and_detach_leak_nothing(run, cycles):
    """Fails when memory, descriptors, threads or parts on disk grow with each cycle."""
    api.stand_by()
    endpoint, trainer = endpoint_of(run), Trainer()

    def cycle(count):
        for _ in range(count):
            ask_until(endpoint, "attach", {}, "recording")
            ask_until(endpoint, "detach", {}, "off")
            # What the trainer itself keeps must not look like growth of ours.
            trainer.losses.clear()

    # The heap of a process that ran other tests grows at first, and then no more.
    first = cycles // 2
    trainer.train_while(lambda: cycle(first))
    gc.collect()
    before, resident = traces_after_answers(endpoint), resident_bytes()
    trainer.train_while(lambda: cycle(cycles - first))
    gc.collect()
    assert differences(before, traces_after_answers(endpoint)) == {}
    grown = resident_bytes() - resident
    assert grown < 8_000_000 + 10_000 * cycles, f"{grown} bytes in {cycles} cycles"
    assert len(list(run.glob("rank*"))) <= 32


def test_a_verb_can_be_added_while_it_serves(run):
    """Fails when other parts of the probe cannot offer verbs of their own."""
    from meshscope.probe.control.verbs import Verb

    api.stand_by()
    api._control.registry.add(Verb("ping", "Answer.", lambda _: {"pong": api._control.rank}))
    (answer,) = ask_all([Endpoint(0, os.getpid(), endpoint_of(run).path)], "ping", {})
    assert answer.reply is not None
    assert answer.reply.result == {"pong": 0}
    api._control.registry.remove("ping")

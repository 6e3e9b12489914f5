"""A session in a bad place: training goes on, and the capture says what is missing."""

import asyncio
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.texts import texts

from meshscope import probe
from meshscope.probe import clock
from meshscope.probe.job.identity import identify
from meshscope.probe.reader.run import read_run
from meshscope.probe.recording import rank_manifest
from meshscope.probe.recording import recorder as recorder_module
from meshscope.probe.recording.open_recorder import NullRecorder
from meshscope.probe.safety.room import NEEDED_BYTES
from meshscope.probe.schema.segment import SegmentFile
from meshscope.probe.session import session as session_module


@pytest.fixture(autouse=True)
def _detached(monkeypatch):
    """Detach whatever a test leaves attached; nobody needs a socket here."""
    monkeypatch.setenv("MESHSCOPE_CONTROL", "0")
    yield
    probe.detach()


class Training:
    """A tiny model, the same each time that it is made."""

    def __init__(self):
        """Make the model."""
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses = []

    def run(self, steps):
        """Train some steps; return the bits of all losses so far."""
        for _ in range(steps):
            loss = self.model(torch.ones(2, 4)).square().sum()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item().hex())
        return self.losses


def test_a_directory_that_cannot_be_made(capfd):
    """Fails when a read-only place raises into training, or passes in silence."""
    session = probe.attach("/proc/self/fdinfo/run")
    assert Training().run(5) == Training().run(5)
    assert isinstance(session._capture.recorder, NullRecorder)
    assert "rank 0 records nothing: " in capfd.readouterr().err


def test_a_limit_of_address_space(tmp_path, capfd):
    """Fails when the probe takes memory that a limit leaves to the training, which then dies."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for limit, is_attached in ((used + NEEDED_BYTES // 2, False), (used + 2 * NEEDED_BYTES, True)):
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        try:
            session = probe.attach(tmp_path / "run")
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        assert (session is not None) == is_attached
    assert "not attached: the limit of address space (ulimit -v) leaves" in capfd.readouterr().err


@pytest.mark.parametrize("has_lock", [False, True])
def test_an_interpreter_without_its_lock(tmp_path, capfd, monkeypatch, has_lock):
    """Fails when threads of a free-threaded Python share slots of the ring, or nobody is told why not."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_lock, raising=False)
    assert (probe.attach(tmp_path / "run") is not None) == has_lock
    assert has_lock or not (tmp_path / "run").exists()
    reported = capfd.readouterr().err
    assert ("not attached: this free-threaded Python runs without" in reported) != has_lock


def test_a_file_size_limit_in_the_middle(tmp_path):
    """Fails when a full disk or a quota ends training, or what was lost is not counted."""
    session, training = probe.attach(tmp_path / "run"), Training()
    training.run(5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        training.run(5)
        session.flush()
        training.run(5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    losses = training.run(5)
    probe.detach()
    assert losses == Training().run(20)
    capture = read_run(tmp_path / "run")
    counters = capture.rank_manifests[0]["counters"]
    assert counters["segment_write_errors"] >= 1
    assert counters["manifest_write_errors"] >= 1
    assert capture.tables["step"].num_rows == 20, "the ring was there before the limit"


def test_a_write_that_hangs(tmp_path, monkeypatch):
    """Fails when training waits for a file system that does not answer."""
    hanging, released = threading.Event(), threading.Event()
    append = SegmentFile.append

    def slow_append(segment, payload):
        hanging.set()
        assert released.wait(60)
        append(segment, payload)

    monkeypatch.setattr(SegmentFile, "append", slow_append)
    session, training = probe.attach(tmp_path / "run"), Training()
    training.run(5)
    flushing = threading.Thread(target=session.flush)
    flushing.start()
    assert hanging.wait(60)
    losses = training.run(20)
    released.set()
    flushing.join()
    probe.detach()
    assert losses == Training().run(25)
    capture = read_run(tmp_path / "run")
    assert capture.tables["step"].num_rows == 25
    assert texts(capture.limits) == ()


def test_a_wall_clock_that_is_put_back(tmp_path, monkeypatch):
    """Fails when a step of the wall clock moves what was recorded, or is not said."""
    session, training = probe.attach(tmp_path / "run"), Training()
    training.run(3)
    now = clock.unix_ns
    monkeypatch.setattr(clock, "unix_ns", lambda: now() - 7_000_000_000)
    training.run(3)
    assert session is not None
    probe.detach()
    capture = read_run(tmp_path / "run")
    steps = capture.tables["step"].to_pandas()
    assert list(steps["start_ns"][1:]) == list((steps["start_ns"] + steps["dur_ns"])[:-1])
    (limit,) = texts(capture.limits)
    assert limit.startswith("The wall clock of rank 0 was set by -7.0")


def test_training_code_that_changes_its_directory(tmp_path, monkeypatch):
    """Fails when a relative run directory is lost as soon as Hydra goes elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    session, training = probe.attach("run"), Training()
    monkeypatch.chdir(tmp_path / "elsewhere")
    training.run(3)
    session.flush()
    probe.detach()
    assert session.run_path == tmp_path / "run"
    assert read_run(tmp_path / "run").tables["step"].num_rows == 3
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_changed_before_the_rank_is_known(tmp_path, monkeypatch):
    """Fails when the run of a rank depends on when it was told who it is."""
    for name in ("RANK", "WORLD_SIZE", "MESHSCOPE_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    session = probe.attach()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Training().run(1)
    assert session.run_path.parent == tmp_path / "meshscope_runs"


def test_a_run_directory_that_vanishes(tmp_path):
    """Fails when deleting a run under a live job breaks the job."""
    session, training = probe.attach(tmp_path / "run"), Training()
    training.run(3)
    (tmp_path / "run").rename(tmp_path / "moved")
    training.run(3)
    session.flush()
    probe.detach()
    assert training.losses == Training().run(6)


def test_the_manifest_of_a_rank_says_which_of_its_host_it_is(tmp_path, monkeypatch):
    """Fails when nobody can tell which GPU of the host a rank has had."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    probe.attach(tmp_path)
    probe.detach()
    manifest = read_run(tmp_path).rank_manifests[0]
    assert (manifest["world_size"], manifest["local_rank"]) == (4, 0)


def test_who_was_alone_may_join_a_group_later(tmp_path, monkeypatch):
    """Fails when a process that trained alone stays rank 0 of 1 for good."""
    monkeypatch.delenv("RANK", raising=False)
    session = probe.attach(tmp_path)
    Training().run(1)
    assert session.rank == 0
    assert identify({}) == (0, 1)
    probe.detach()
    assert identify({}) is None


def test_a_disk_that_hangs_at_the_start(tmp_path, monkeypatch, capfd):
    """Fails when training waits for ever to begin, or files that come too late stay open."""
    released, opened = threading.Event(), []
    open_files = session_module.open_recorder

    def slow(*arguments, **keywords):
        assert released.wait(60)
        opened.append(open_files(*arguments, **keywords))
        return opened[0]

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(session_module, "open_recorder", slow)
    monkeypatch.setattr(session_module, "MOST_OPEN_S", 0.1)
    session = probe.attach(tmp_path / "run")
    assert Training().run(3) == Training().run(3)
    assert session.directory is None
    assert "records nothing: the disk does not answer" in capfd.readouterr().err
    released.set()
    for thread in threading.enumerate():
        if thread.name == "meshscope-disk":
            thread.join(60)
    assert read_run(tmp_path / "run").rank_manifests[0]["closed_unix_ns"]


def test_a_flush_that_takes_too_long_is_counted_and_made(tmp_path, monkeypatch):
    """Fails when the training waits for its disk although it said how long it would."""
    released = threading.Event()
    append = SegmentFile.append

    def slow_append(segment, payload):
        assert released.wait(60)
        append(segment, payload)

    monkeypatch.setattr(SegmentFile, "append", slow_append)
    monkeypatch.setattr(recorder_module, "MOST_FLUSH_S", 0.05)
    session = probe.attach(tmp_path / "run")
    Training().run(5)
    session.flush()
    released.set()
    probe.detach()
    capture = read_run(tmp_path / "run")
    assert capture.rank_manifests[0]["counters"]["flush_timeouts"] == 1
    assert capture.tables["step"].num_rows == 5


def test_a_wall_clock_that_is_put_meanwhile_changes_no_duration(tmp_path, monkeypatch):
    """Fails when a time daemon's jump makes steps of minutes or negative ones, or is not reported."""
    put_ns, training = 0, Training()

    def unix_ns():
        return time.time_ns() + put_ns

    monkeypatch.setattr(clock, "unix_ns", unix_ns)
    monkeypatch.setattr(rank_manifest, "unix_ns", unix_ns)
    probe.attach(tmp_path / "run")
    for put_s in (0, 300, -120):
        put_ns = put_s * 1_000_000_000
        training.run(3)
        time.sleep(1.2)
    probe.detach()
    capture = read_run(tmp_path / "run")
    for name in ("step", "span"):
        durations = capture.tables[name].column("dur_ns").to_pylist()
        assert len(durations) >= 9
        assert all(0 <= dur_ns < 100_000_000_000 for dur_ns in durations)
    reported = [limit for limit in texts(capture.limits) if limit.startswith("The wall clock")]
    assert len(reported) == 2
    assert "set by +300 s" in reported[0]
    assert "set by -420 s" in reported[1]


def test_a_training_in_an_event_loop(tmp_path):
    """Fails when a loop loses its signals or its wake-up descriptor to the probe, or a loss changes."""
    heard = []

    async def train():
        loop, training = asyncio.get_running_loop(), Training()
        loop.add_signal_handler(signal.SIGUSR2, heard.append, "during")
        wakes = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakes)
        probe.attach(tmp_path / "run")
        for _ in range(3):
            training.run(2)
            await asyncio.sleep(0)
        signal.raise_signal(signal.SIGUSR2)
        await asyncio.sleep(0.01)
        probe.detach()
        assert signal.set_wakeup_fd(wakes) == wakes
        loop.remove_signal_handler(signal.SIGUSR2)
        return training.losses

    assert asyncio.run(train()) == Training().run(6)
    assert heard == ["during"]
    assert read_run(tmp_path / "run").tables["step"].num_rows == 6

"""SIGKILL at any moment costs no committed record and never confuses the reader."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.texts import texts

from meshscope.probe.reader.run import RunCapture, read_run
from meshscope.probe.schema.rundir import create_run

MOMENTS = 50
JOB = Path(__file__).with_name("recording_job.py")

PATIENT = {"slot_count": 16384, "wake_s": 3600.0, "flush_every": 4096}
"""Mostly in the ring: the writer works every few thousand records only."""
HASTY = {
    "slot_count": 1024,
    "wake_s": 0.001,
    "batch_records": 16,
    "batch_s": 0.002,
    "segment_s": 0.01,
    "flush_every": 256,
}
"""The ring laps all the time, and segments are written, closed and opened without a pause."""


class Death(NamedTuple):
    """What a killed process leaves."""

    committed: int
    """Records that it had committed."""
    live: RunCapture
    """What could be read while it was recording."""
    capture: RunCapture
    """What can be read afterwards."""


class Job:
    """The server of recording processes."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        """Talk to a started server."""
        self._process = process
        self._folder = folder

    def kill_one(self, name: str, settings: dict, alive_s: float) -> "Death":
        """Kill a recording process some time after its first record."""
        run = create_run(self._folder, name, {"world_size": 1})
        counter = self._folder / f"{name}.counter"
        counter.write_bytes(bytes(8))
        order = {"run": str(run), "counter": str(counter), "settings": settings}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        child = int(self._answer())
        deadline = time.monotonic() + 30
        while not any(counter.read_bytes()) and time.monotonic() < deadline:
            time.sleep(0.001)
        live = read_run(run)
        time.sleep(alive_s)
        os.kill(child, signal.SIGKILL)
        assert self._answer() == str(-signal.SIGKILL), "the job died before it was killed"
        committed = int.from_bytes(counter.read_bytes(), "little")
        return Death(committed, live, read_run(run))

    def _answer(self) -> str:
        return self._process.stdout.readline().strip()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Start the server; end it with the test."""
    with subprocess.Popen(
        [sys.executable, str(JOB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Job(process, tmp_path)
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def numbers(capture: RunCapture) -> list[int]:
    """Return the numbers of all events that were recovered, checking their values."""
    found = []
    for row in capture.tables["collective"].to_pylist():
        number = row["seq"]
        assert (row["issue_ns"], row["step"], row["kind"]) == (number + 1, number, "all_gather")
        assert (row["group_id"], row["dtype"], row["event_id"]) == ("world", "bf16", number + 1)
        found.append(number)
        if row["end_ns"] is not None:
            times = (row["end_ns"], row["wait_start_ns"], row["wait_end_ns"])
            assert times == (number + 2, number + 3, number + 4)
            found.append(number + 1)
    for row in capture.tables["span"].to_pylist():
        assert row["start_ns"] == row["step"] + 1
        found.append(row["step"])
    for row in capture.tables["p2p"].to_pylist():
        assert row["issue_ns"] == row["seq"] + 1
        found.append(row["seq"])
    for row in capture.tables["step"].to_pylist():
        assert (row["start_ns"], row["tokens"]) == (row["step"] + 1, 2048)
        found.append(row["step"])
    return sorted(found)


def test_killed_at_random_moments(job):
    """Fails when a record that was committed before the kill is lost, changed or doubled."""
    moments = random.Random(20)
    totals = {"patient": 0, "hasty": 0}
    segments = 0
    for attempt in range(MOMENTS):
        name, settings = (("patient", PATIENT), ("hasty", HASTY))[attempt % 2]
        alive_s = moments.uniform(0.0, 0.1)
        committed, live, capture = job.kill_one(f"{name}-{attempt}", settings, alive_s)
        found = numbers(capture)
        # The process may have died between a record and its count.
        assert found in (list(range(committed)), list(range(committed + 1))), (name, alive_s)
        assert [limit for limit in texts(capture.limits) if not is_explained(limit)] == []
        assert any("or is still running" in limit for limit in texts(capture.limits))
        seen = numbers(live)
        assert seen == list(range(len(seen)))
        assert [limit for limit in texts(live.limits) if not is_explained(limit)] == []
        totals[name] += committed
        segments += len(list((capture.path / "rank00000").glob("seg-*")))
    assert all(totals.values())
    assert segments > MOMENTS // 5, "the writer was not at work when the processes were killed"


def is_explained(limit: str) -> bool:
    """Tell limits that a kill explains from those that mean a loss."""
    explained = ("is torn", "not finished", "No close mark", "the file is empty")
    return any(words in limit for words in explained)

"""A trace file on its way from raw to sealed."""

import gzip
import hashlib
import json
import subprocess
import sys

import pytest

from meshscope.probe.deep.names import trace_folder
from meshscope.probe.deep.sealing import is_complete, raw_traces, seal, sealed_traces
from meshscope.probe.schema.deep_trace import TraceName, raw_file
from meshscope.probe.schema.manifest import rank_directory

NAME = TraceName(7, 9, "abc")
WHOLE = json.dumps({"traceEvents": [{"ph": "X"}] * 1000, "traceName": "x"})


@pytest.fixture
def folder(run_path):
    """Return the folder of the traces of rank 0."""
    return trace_folder(rank_directory(run_path, 0))


def write(folder, text=WHOLE):
    """Write a raw trace and return its path."""
    path = raw_file(folder, NAME, 42)
    path.write_text(text)
    return path


def test_a_sealed_trace_is_the_raw_one_with_its_hash(run_path, folder):
    """Fails if compressing changes a trace, or its description is of another file."""
    path = write(folder)
    (raw,) = raw_traces(run_path)
    sealed = seal(raw)
    assert gzip.decompress(sealed.path.read_bytes()).decode() == WHOLE
    assert sealed.sha256 == hashlib.sha256(sealed.path.read_bytes()).hexdigest()
    assert sealed.size_bytes == sealed.path.stat().st_size
    assert sealed.path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
    assert list(sealed_traces(run_path)) == [sealed]
    assert list(sealed_traces(run_path, "other")) == []
    assert len(list(folder.iterdir())) == 2


def test_two_that_seal_at_once_do_it_once(run_path, folder):
    """Fails if the agent and a waiting command destroy each other's file."""
    write(folder)
    (raw,) = raw_traces(run_path)
    assert seal(raw) is not None
    assert seal(raw) is None
    assert len(list(sealed_traces(run_path))) == 1


@pytest.mark.parametrize("kept", [0, 1, len(WHOLE) // 2, len(WHOLE) - 1])
def test_a_trace_that_is_still_written_is_not_complete(folder, kept):
    """Fails if half a trace is compressed while its process still writes it."""
    assert not is_complete(write(folder, WHOLE[:kept]))
    assert is_complete(write(folder, WHOLE + "\n"))


def test_a_trace_that_cannot_be_compressed_stays(run_path, folder):
    """Fails if a full disk costs the trace that is there already."""
    path = write(folder)
    (raw,) = raw_traces(run_path)
    blocked = folder / "step000007-000009.abc.rank00000.json.gz"
    blocked.mkdir()
    (blocked / "x").touch()
    with pytest.raises(OSError, match="step000007"):
        seal(raw)
    assert path.read_text() == WHOLE
    assert [found.name for found in folder.iterdir() if "draft" in found.name] == []


KILLED = """
import sys, time
from pathlib import Path
from meshscope.probe.deep.sealing import raw_traces, seal
def wait():
    print("at work", flush=True)
    time.sleep(600)
for raw in raw_traces(Path(sys.argv[1])):
    seal(raw, wait)
"""


def test_a_trace_is_there_while_it_is_sealed_and_after_its_sealer_was_killed(run_path, folder):
    """Fails if an agent that is killed while it compresses takes the trace with it."""
    path = write(folder)
    command = [sys.executable, "-c", KILLED, str(run_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sealer:
        assert sealer.stdout.readline()
        (raw,) = raw_traces(run_path)
        assert seal(raw) is None, "the other one is at work"
        sealer.kill()
    assert raw.path == path
    assert seal(raw).path.exists()
    assert len(list(folder.iterdir())) == 2, "the draft of the killed one is gone"


def test_sealing_that_is_given_up_leaves_the_raw_trace_alone(run_path, folder):
    """Fails if an agent that has to end leaves half a file, or no trace."""
    path = write(folder)
    (raw,) = raw_traces(run_path)
    with pytest.raises(InterruptedError):
        seal(raw, lambda: True)
    assert list(folder.iterdir()) == [path]

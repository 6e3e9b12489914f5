"""Only regular files of bounded size are opened."""

import os
import socket
import subprocess
import sys

import pytest

from meshscope.probe.schema.reading import OwnDescriptor, open_file


def test_a_file_is_opened(tmp_path):
    """Good files would not be read."""
    (tmp_path / "a").write_bytes(b"abc")
    with open_file(tmp_path / "a", most_bytes=3) as file:
        assert file.read() == b"abc"


@pytest.mark.parametrize("what", ["pipe", "link", "device", "folder", "socket", "large", "absent"])
def test_anything_else_is_an_error_at_once(tmp_path, monkeypatch, what):
    """The reader would wait for ever, fill the memory, or read a file outside the run."""
    place = tmp_path / "a"
    (tmp_path / "outside").write_bytes(b"abc")
    if what == "pipe":
        os.mkfifo(place)
    elif what in ("link", "device"):
        place.symlink_to({"link": tmp_path / "outside", "device": "/dev/zero"}[what])
    elif what == "folder":
        place.mkdir()
    elif what == "socket":
        monkeypatch.chdir(tmp_path)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("a")
    elif what == "large":
        place.write_bytes(b"abcd")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"regular file|larger than|No such file"):
        open_file(place, most_bytes=3)
    assert len(os.listdir("/proc/self/fd")) == before


DAEMON = """
import os, sys
os.environ.update(RANK="0", WORLD_SIZE="1", MESHSCOPE_FULL_EVERY_STEPS="1")
import torch
from meshscope import probe
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = probe.attach(sys.argv[1])

def train():
    for _ in range(20):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

train()
session._capture.recorder.flush()
os.closerange(3, 1024)
mine = [os.open(sys.argv[2], os.O_RDWR | os.O_CREAT) for _ in range(64)]
train()
session._capture.recorder.flush()
probe.detach()
del session
import gc
gc.collect()
print(all(os.path.samestat(os.fstat(one), os.stat(sys.argv[2])) for one in mine))
print(os.stat(sys.argv[2]).st_size)
"""


def test_a_program_that_closes_what_is_open_keeps_what_it_opens(tmp_path):
    """Fails when the probe writes into a file of the program, or closes it."""
    command = [sys.executable, "-c", DAEMON, str(tmp_path / "run"), str(tmp_path / "own")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.stdout.split(), ended.returncode) == (["True", "0"], 0), ended.stderr


def test_a_number_that_stands_for_another_file_is_let_alone(tmp_path):
    """Fails when a number that was closed and given to another file counts as ours."""
    own = OwnDescriptor(os.open(tmp_path / "ours", os.O_WRONLY | os.O_CREAT))
    assert own.is_open
    os.close(own.number)
    assert not own.is_open
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    assert other == own.number
    assert not own.is_open
    own.close()
    os.close(other)


def test_it_is_closed_once(tmp_path):
    """Fails when descriptors are left open, or closing twice is an error."""
    own = OwnDescriptor(os.open(tmp_path / "ours", os.O_WRONLY | os.O_CREAT))
    own.close()
    own.close()
    assert not own.is_open

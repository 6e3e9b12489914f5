"""What the program closes and uses again is not ours any more."""

import os
import subprocess
import sys

from meshscope.probe.schema.descriptors import OwnDescriptor

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

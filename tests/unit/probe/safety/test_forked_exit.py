"""Children that a recorded process forks end as they do without the probe."""

import sys

import pytest

from meshscope.probe.launching.launch import run

FORKS = """
import os, sys, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
if child := os.fork():
    # A child that hangs is killed, and its code says so.
    import signal
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(30)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.setsid()
print("the child has trained")
sys.exit(7)
"""


@pytest.mark.sampled(keep=("rank",))
@pytest.mark.parametrize(
    "environment", [{}, {"RANK": "0", "WORLD_SIZE": "1"}], ids=["lone", "rank"]
)
def test_a_child_that_was_forked_after_training_ends(tmp_path, monkeypatch, environment):
    """Fails when a trainer that goes on in the background hangs at its end, or loses its exit code."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with open(tmp_path / "said", "w+") as said:
        redirect = f"import os\nos.dup2(os.open({said.name!r}, os.O_WRONLY), 1)\n"
        assert run([sys.executable, "-c", redirect + FORKS], tmp_path, "a", agent_options=[]) == 7
        assert said.read() == "the child has trained\n"

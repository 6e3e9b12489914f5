"""One process at a time records a rank that nobody has named."""

import os
import subprocess
import sys

from meshscope.probe.job.claim import _HELD, claim

HOLDS = """
import sys
from pathlib import Path
from meshscope.probe.job.claim import claim
print(claim(Path(sys.argv[1]), 0) is not None, flush=True)
sys.stdin.read()
"""


def test_the_second_process_gets_none_until_the_first_has_ended(tmp_path):
    """Fails when two trainers of one run both record as rank 0."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as first:
        assert first.stdout.readline() == b"True\n"
        assert claim(tmp_path, 0) is None
        other = claim(tmp_path, 1)
        assert other is not None
        first.kill()
    again = claim(tmp_path, 0)
    assert again is not None
    again.release()
    other.release()


def test_a_claim_that_was_released_is_free(tmp_path):
    """Fails when a process that was detached cannot be attached again."""
    first = claim(tmp_path, 0)
    first.release()
    first.release()
    second = claim(tmp_path, 0)
    assert second is not None
    second.release()


def test_a_lock_whose_file_was_closed_is_let_go(tmp_path):
    """Fails when a program that closes all that is open gets an error when it is detached."""
    held = claim(tmp_path, 0)
    os.close(held._descriptor.number)
    held.release()
    assert held not in _HELD


def test_a_forked_child_does_not_hold_it(tmp_path):
    """Fails when a worker that outlives its trainer keeps the next one from recording."""
    held = claim(tmp_path, 0)
    (reported, tell), (stay, leave) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(leave)
        os.write(tell, b"1")
        os.read(stay, 1)
        os._exit(0)
    assert os.read(reported, 1) == b"1"
    os.close(held._descriptor.number)  # as the end of the trainer does, whatever ended it
    _HELD.discard(held)
    again = claim(tmp_path, 0)
    os.close(leave)
    os.waitpid(child, 0)
    for end in (reported, tell, stay):
        os.close(end)
    assert again is not None
    again.release()


def test_a_release_does_not_wait_for_a_child_that_was_just_forked(tmp_path):
    """Fails when the copy of a stopped or starting child holds what was let go."""
    held = claim(tmp_path, 0)
    copy = os.dup(held._descriptor.number)
    held.release()
    again = claim(tmp_path, 0)
    os.close(copy)
    assert again is not None
    again.release()

"""Stacks of a process that a signal ends: written by the interpreter, and only where nobody else has them written."""

import subprocess
import sys
from signal import SIGABRT, SIGSEGV

import pytest

from meshscope.probe.schema.manifest import FATAL_STACK_NAME

_BEGIN = """
import ctypes, faulthandler, os, sys
from pathlib import Path
from meshscope.probe.recording.fatal_stack import FatalStack

directory, stack = Path(sys.argv[1]), FatalStack()

def load():
    ctypes.string_at(0)
"""


def run(directory, *lines):
    """Run a program in a process of its own; return how it ended and what was written."""
    ended = subprocess.run(
        [sys.executable, "-c", "\n".join([_BEGIN, *lines]), str(directory)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    file = directory / FATAL_STACK_NAME
    return ended, file.read_text() if file.exists() else None


@pytest.mark.parametrize(("end", "signal"), [("load()", SIGSEGV), ("os.abort()", SIGABRT)])
def test_the_stack_is_written_and_the_end_stays_what_it_was(tmp_path, end, signal):
    """Fails when nobody knows the line at which a rank crashed, or its exit status becomes another one."""
    ended, text = run(tmp_path, "stack.open(directory)", end)
    assert ended.returncode == -signal
    assert "in <module>" in text
    assert b"Fatal Python error" not in ended.stderr


def test_a_program_that_has_them_written_keeps_that(tmp_path):
    """Fails when the traceback of a crash is no more in the log of the job."""
    for lines in (
        ["faulthandler.enable()", "stack.open(directory)"],
        ["stack.open(directory)", "faulthandler.enable()", "stack.close()"],
    ):
        ended, text = run(tmp_path, *lines, "load()")
        assert b"in load" in ended.stderr
        assert not text


def test_a_recording_that_is_closed_gets_no_stack(tmp_path):
    """Fails when the end of a program that was recorded to its end reads as a crash of the job."""
    ended, text = run(tmp_path, "stack.open(directory)", "stack.close()", "load()")
    assert (ended.returncode, text) == (-SIGSEGV, "")


def test_nothing_is_left_of_a_recording_that_is_closed(tmp_path):
    """Fails when each attach and detach leaves a file open in the training process, or faults handled by us."""
    lines = ["before = os.listdir('/proc/self/fd'), faulthandler.enable", "stack.open(directory)"]
    lines += ["stack.close()", "stack.open(directory)", "stack.close()"]
    lines += ["assert (os.listdir('/proc/self/fd'), faulthandler.enable) == before"]
    lines += ["assert not faulthandler.is_enabled()"]
    ended, _ = run(tmp_path, *lines)
    assert ended.returncode == 0, ended.stderr


def test_a_child_writes_nothing_into_the_file_of_its_parent(tmp_path):
    """Fails when the crash of a data loader is taken for that of its rank."""
    lines = ["stack.open(directory)", "child = os.fork()", "child or stack.close()"]
    lines += ["child or load()", "os.waitpid(child, 0)"]
    assert run(tmp_path, *lines)[1] == ""


def test_a_file_with_the_number_of_ours_is_left_alone(tmp_path):
    """Fails when a stack is written into a checkpoint, because the program closed our file and opened its own."""
    lines = ["stack.open(directory)", "os.closerange(3, 100)", "stack.look()"]
    lines += ["file = open(directory / 'checkpoint', 'w')", "load()"]
    ended, _ = run(tmp_path, *lines)
    assert ended.returncode == -SIGSEGV
    assert (tmp_path / "checkpoint").read_text() == ""

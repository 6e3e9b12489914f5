"""Work in several processes: every result, in order, whatever dies."""

import operator
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from meshscope.analyze.tables.processes import WorkerDied, map_in_processes


def nobody(_count):
    """Take no notice of progress."""


def test_results_come_in_the_order_of_the_tasks():
    """Tables of one rank would be taken for those of another."""
    assert map_in_processes(abs, [-3, 2, -1], workers=2, on_bytes=nobody) == [3, 2, 1]


def test_only_the_task_that_kills_its_process_is_lost():
    """One file that needs too much memory would take all others with it, or hang the program."""
    # The child cannot import functions of tests; this one it has.
    tasks = [partial(abs, -1), partial(os._exit, 9), partial(abs, -2)]
    found = map_in_processes(operator.call, tasks, workers=2, on_bytes=nobody)
    assert found == [1, WorkerDied(), 2]


def test_an_error_is_that_of_the_function():
    """A file that cannot be read would end as an error about processes."""
    with pytest.raises(RuntimeError, match="TypeError: bad operand type for abs"):
        map_in_processes(abs, ["x"], workers=1, on_bytes=nobody)
    with pytest.raises(FileNotFoundError, match="absent"):
        map_in_processes(os.listdir, ["/absent"], workers=1, on_bytes=nobody)


def test_this_process_keeps_its_interrupt():
    """After a read with several processes Ctrl-C would no longer stop the program."""
    before = signal.getsignal(signal.SIGINT)
    map_in_processes(abs, [1], workers=1, on_bytes=nobody)
    assert signal.getsignal(signal.SIGINT) is before


_PROGRAM = """
import os, time
from meshscope.analyze.tables import processes

if __name__ == "__main__":
    processes._PRELOADED.append("slow_module")
    try:
        processes.map_in_processes(time.sleep, [30], workers=1, on_bytes=abs)
    except KeyboardInterrupt:
        os._exit(130)
"""


def test_ctrl_c_while_workers_are_started_shows_no_traceback(tmp_path):
    """Whoever thinks better of a command in its first second would be shown thirty lines of its insides."""
    loading = tmp_path / "loading"
    slow = f"import pathlib, time; pathlib.Path({str(loading)!r}).touch(); time.sleep(30)"
    (tmp_path / "slow_module.py").write_text(slow)
    (tmp_path / "main.py").write_text(_PROGRAM)
    with subprocess.Popen(
        [sys.executable, tmp_path / "main.py"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    ) as command:
        until = time.monotonic() + 60
        while not loading.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        os.killpg(command.pid, signal.SIGINT)
        # The end of the text comes when all that were started have gone.
        _, words = command.communicate(timeout=20)
    assert (command.returncode, words) == (130, "")

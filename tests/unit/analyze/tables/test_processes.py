"""Work in several processes: every result, in order, whatever dies."""

import operator
import os
import signal
from functools import partial

import pytest

from meshscope.analyze.tables.processes import WorkerDied, map_in_processes, usable_cpus


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


def test_cpus_are_those_that_this_process_may_use():
    """A job with two of 64 CPUs would start 64 processes."""
    assert usable_cpus() == len(os.sched_getaffinity(0))

"""Work of several threads is that of one, in its order, and ends as it does."""

import os
import threading

import pytest

from meshscope.analyze.tables import threads as module
from meshscope.analyze.tables.threads import map_in_threads, usable_cpus


@pytest.fixture
def four_cpus(monkeypatch):
    """Have four threads, wherever the test runs."""
    monkeypatch.setattr(module, "usable_cpus", lambda: 4)


def test_cpus_are_those_that_this_process_may_use():
    """A job with two of 64 CPUs would start 64 processes."""
    assert usable_cpus() == len(os.sched_getaffinity(0))


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize("side_by_side", [True, False])
def test_results_come_in_the_order_of_the_items(side_by_side):
    """Fails when a sum is formed in another order, so that its last bits depend on the machine."""
    late = {0: threading.Event()}

    def squared(item):
        if side_by_side and item == 0:
            assert late[0].wait(30)
        if item == 3:
            late[0].set()
        return item * item

    assert list(map_in_threads(squared, range(50), side_by_side=side_by_side)) == [
        item * item for item in range(50)
    ]


@pytest.mark.usefixtures("four_cpus")
def test_few_items_are_taken_ahead():
    """Fails when a run of thousands of files is read into memory before the first one is looked at."""
    taken = []

    def items():
        for item in range(1000):
            taken.append(item)
            yield item

    results = map_in_threads(str, items())
    next(results)
    assert len(taken) <= module.MOST_THREADS + 1
    results.close()


@pytest.mark.usefixtures("four_cpus")
def test_an_error_of_one_is_that_of_the_call():
    """Fails when a damaged file is passed over because a thread of its own read it."""
    with pytest.raises(ZeroDivisionError):
        list(map_in_threads(lambda item: 1 / item, [2, 1, 0, 3]))


def test_one_cpu_needs_no_thread(monkeypatch):
    """Fails when a small machine pays for threads that wait for each other."""
    monkeypatch.setattr(module, "usable_cpus", lambda: 1)
    main = threading.get_ident()
    assert set(map_in_threads(lambda _: threading.get_ident(), range(5))) == {main}

"""The same work on several arrays, side by side: numpy and Arrow leave the interpreter free while they work on a large one.

For work that is not worth a process of its own, because what it reads is here already.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

MOST_THREADS = 4
"""More of them wait for the interpreter."""


def usable_cpus() -> int:
    """Return on how many CPUs this process may run."""
    return len(os.sched_getaffinity(0))


def map_in_threads(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, side_by_side: bool = True
) -> Iterator[_Result]:
    """Yield what a function makes of each item, in their order, as ``map`` does.

    Items are taken as threads get free, so that memory holds few of them and of what is made.

    Args:
        function: Works on arrays, and changes nothing that another call of it looks at.
        items: Taken in the calling thread.
        side_by_side: Whether the arrays are so large that threads are worth their start.
    """
    threads = min(usable_cpus(), MOST_THREADS) if side_by_side else 1
    if threads == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="meshscope-map") as pool:
        begun: deque[Future[_Result]] = deque()
        try:
            for item in items:
                begun.append(pool.submit(function, item))
                if len(begun) > threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for one in begun:
                one.cancel()

"""Ranks that are forked from a server which has imported what they need, once for all tests."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

_PRELOADED = ["tests.distributed.preloaded"]
"""One list for all tests: the server keeps to that of the first who starts a process."""
PATIENCE_S = 240.0
"""Longer than any job takes on a machine with much else to do."""


def start_ranks(
    target: Callable[..., object], arguments: Iterable[tuple[Any, ...]]
) -> list[BaseProcess]:
    """Start one process for each tuple of arguments."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    ranks: list[BaseProcess] = [context.Process(target=target, args=one) for one in arguments]
    for process in ranks:
        process.start()
    return ranks


def join_ranks(ranks: Sequence[BaseProcess], patience_s: float = PATIENCE_S) -> list[int | None]:
    """Wait for ranks, end those that still run; return exit codes, None for one that still ran."""
    deadline = time.monotonic() + patience_s
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    return codes

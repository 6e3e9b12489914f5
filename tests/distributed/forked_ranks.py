"""Ranks that are forked from a server which has imported what they need, once for all tests."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.ports import free_port

_PRELOADED = ["tests.distributed.preloaded"]
"""One list for all tests: the server keeps to that of the first who starts a process."""
RECORD_ALL = {"MESHSCOPE_COST_BUDGET_PPM": "0"}
"""Tests of what is recorded want all of it: on a busy machine the probe would keep to its budget."""
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


def run_forked(
    folder: Path,
    target: Callable[..., object],
    arguments: Sequence[object],
    *,
    ranks: int,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Run the ranks of a job, and return what they printed; fail as they do."""
    given = {**meeting(), **environment}
    jobs = [
        (rank, ranks, folder / f"rank{rank}.txt", target, arguments, given) for rank in range(ranks)
    ]
    return printed(folder, ranks, join_ranks(start_ranks(be_rank, jobs)))


def meeting() -> dict[str, str]:
    """Return the variables that say where the ranks of a new job meet."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def printed(folder: Path, ranks: int, codes: Sequence[int | None]) -> list[str]:
    """Return what the ranks printed, if all went well."""
    files = [folder / f"rank{rank}.txt" for rank in range(ranks)]
    texts = [file.read_text() if file.exists() else "" for file in files]
    assert not any(code != 0 for code in codes), "\n".join(text[-4000:] for text in texts)
    return texts


def be_rank(
    rank: int,
    count: int,
    output: Path,
    target: Callable[..., object],
    arguments: Sequence[object],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Do what a rank does, and end as a program ends."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        **RECORD_ALL,
        **environment,
    }
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    warnings.simplefilter("ignore")
    try:
        target(*arguments)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()

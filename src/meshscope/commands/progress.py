"""How far the reading of traces is, on stderr: stdout belongs to results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from meshscope.probe.clock import now_ns

from .output import say

if TYPE_CHECKING:
    from rich.progress import Progress

WORTH_A_LINE_BYTES = 10_000_000
"""Inputs below this size are read before anybody asks how long it takes."""


@contextmanager
def reading_progress(total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many more bytes were read.

    A terminal gets a bar with the rate and the time that is left; it appears with the
    first bytes and vanishes at the end. Elsewhere one line at the end says how long it
    took, if the input is not small.

    Args:
        total_bytes: Size of the input as it is on disk.
    """
    start_ns, bar = now_ns(), _Bar(total_bytes) if sys.stderr.isatty() else None
    reported = 0

    def on_bytes(count: int) -> None:
        nonlocal reported
        reported += count
        if bar is not None and count:
            bar.move(count)

    try:
        yield on_bytes
    finally:
        if bar is not None:
            bar.close()
    if bar is None and reported and total_bytes >= WORTH_A_LINE_BYTES:
        seconds = (now_ns() - start_ns) / 1e9
        rate = total_bytes / 1e6 / seconds
        say(f"read {total_bytes / 1e6:,.1f} MB in {seconds:.2f} s ({rate:,.0f} MB/s)")


def ranks_progress(
    total: int, *, done: str = "summarized"
) -> AbstractContextManager[Callable[[int], None]]:
    """Give a function that is told how many more ranks are done.

    Args:
        total: Ranks in all.
        done: What was done to them.
    """
    return work_progress(total, "ranks", done)


@contextmanager
def work_progress(total: int, what: str, done: str) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many more pieces of some work are done.

    A terminal gets a bar with the time that is left; elsewhere there is a line every tenth of the way.

    Args:
        total: Pieces in all.
        what: The pieces, in the plural.
        done: What was done to them.
    """
    if sys.stderr.isatty():
        with _pieces_bar() as bar:
            task = bar.add_task(f"{what} {done}", total=total)
            yield lambda count: bar.advance(task, count)
        return
    start_ns, reached, reported = now_ns(), 0, 0

    def on_done(count: int) -> None:
        nonlocal reached, reported
        reached += count
        if 10 * reached // max(total, 1) > reported:
            reported = 10 * reached // max(total, 1)
            say(f"{done} {reached:,} of {total:,} {what} in {(now_ns() - start_ns) / 1e9:.1f} s")

    yield on_done


def _pieces_bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    rest = (TimeRemainingColumn(), TextColumn("left"))
    return Progress(*columns, *rest, console=Console(stderr=True), transient=True)


class _Bar:
    """A bar that is drawn from its first move on.

    Args:
        total_bytes: Where it ends.
    """

    def __init__(self, total_bytes: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("reading"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("time left"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("reading", total=total_bytes)
        self._is_drawn = False

    def move(self, count: int) -> None:
        """Add to what was read."""
        if not self._is_drawn:
            self._progress.start()
            self._is_drawn = True
        self._progress.advance(self._task, count)

    def close(self) -> None:
        """Take the bar away."""
        if self._is_drawn:
            self._progress.stop()

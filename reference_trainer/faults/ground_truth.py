"""The log of what was really injected: one JSON line per event, one file per rank.

::

    {"record": "plan", "rank": 0, "clock": "monotonic_ns", "faults": [...]}
    {"record": "fault", "kind": "slow_rank", "step": 3, "start_ns": …, "end_ns": …, …}
    {"record": "step", "step": 3, "start_ns": …, "end_ns": …, "fault_active": true}

Times are those of the probe's clock. ``fault_active`` says whether any fault of
the job was on in the step, on this rank or another, so the steps of one rank's
file are enough for a paired comparison. Lines are held in memory during a step
and appended at its end: a killed run keeps all steps before the last.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..config.fault_plan import ResolvedFault
from ..out_files import start_file, written

Span = tuple[int, int]
"""Start and end in nanoseconds of the probe's clock."""


def truth_path(out: Path, rank: int) -> Path:
    """Return the file of one rank."""
    return out / f"ground_truth.rank{rank:05d}.jsonl"


def attempt_folder(out: Path, number: int) -> Path:
    """Return where an attempt at a run writes: the first into ``out`` itself.

    >>> attempt_folder(Path("out"), 2).as_posix()
    'out/attempt2'
    """
    return out if number == 1 else out / f"attempt{number}"


def next_attempt(out: Path) -> int:
    """Return the number of the first attempt that has written nothing yet."""
    number = 1
    while truth_path(attempt_folder(out, number), 0).exists():
        number += 1
    return number


class GroundTruth:
    """Writes the log of one rank.

    Args:
        out: Folder of the run's output; None writes nothing.
        rank: Global rank.
        faults: What was asked for, with the ranks and seeds that were drawn.

    Raises:
        ConfigError: The folder cannot be written.
    """

    def __init__(self, out: Path | None, rank: int, faults: Sequence[ResolvedFault]) -> None:
        self._out = out
        self._path = None if out is None else truth_path(out, rank)
        self._lines: deque[str] = deque()
        if self._path is not None:
            start_file(self._path)
        plan = [asdict(fault.spec) | {"rank": fault.rank, "seed": fault.seed} for fault in faults]
        self._add(record="plan", rank=rank, clock="monotonic_ns", faults=plan)
        self.flush()

    def fault(
        self, kind: str, step: int, span_ns: tuple[int, int | None], **details: float | str | None
    ) -> None:
        """Note one applied fault with its real start and end, in nanoseconds.

        The end is None for what never ends. May be called on any thread.
        """
        start_ns, end_ns = span_ns
        self._add(record="fault", kind=kind, step=step, start_ns=start_ns, end_ns=end_ns, **details)

    def path_of(self, rank: int) -> Path | None:
        """Return the file of a rank of this job; None where nothing is written."""
        return None if self._out is None else truth_path(self._out, rank)

    def step(self, step: int, span_ns: tuple[int, int], *, fault_active: bool) -> None:
        """Note a finished step and write what it collected."""
        start_ns, end_ns = span_ns
        self._add(
            record="step", step=step, start_ns=start_ns, end_ns=end_ns, fault_active=fault_active
        )
        self.flush()

    def flush(self) -> None:
        """Write what was noted so far: the process may not come to the end of the step.

        Raises:
            OutputError: It can no longer be written.
        """
        if self._path is None:
            return
        with written(self._path), self._path.open("a", encoding="utf-8") as file:
            # One by one: another thread may append meanwhile, and loses nothing.
            while self._lines:
                file.write(f"{self._lines.popleft()}\n")

    def _add(self, **record: object) -> None:
        if self._path is not None:
            self._lines.append(json.dumps(record))

"""Published memory of jobs, asked as a user would before a run: ``meshscope plan``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.truth.foreign.case import Case, Check, Reply
from tests.truth.foreign.memory_rows import (
    B200,
    GOLDEN,
    MemoryRow,
    b200_rows,
    golden_rows,
    write_row,
)

MEMORY = "memory of published jobs"
_WITHIN = 5.0
"""Per cent: so far Megatron-LM's own functional tests let a peak move from its golden value."""


def memory(shared: Path) -> list[Case]:
    """Return a case for each row of the tables that are there."""
    folder = shared / "tables"
    rows: list[MemoryRow] = []
    for name, read in ((B200, b200_rows), (GOLDEN, golden_rows)):
        rows += read(folder) if (folder / name).is_file() else ()
    return [_case(row) for row in rows]


def _case(row: MemoryRow) -> Case:
    name = f"memory-{row.name.replace('/', '-')}"
    file = "job.toml" if "model" in row.stated else "args.json"
    asked = ("plan", file, "--format", "json")
    making = (lambda folder: write_row(row, folder / file),)
    return Case(name, MEMORY, asked, tuple(_checks(row)), making)


def _checks(row: MemoryRow) -> Iterator[Check]:
    for stage, measured in row.peaks.items():
        where = "last stage" if stage < 0 else f"stage {stage}"

        def read(reply: Reply, stage: int = stage, measured: float = measured) -> float:
            return 100 * reply.data["stages"][stage]["allocated_bytes"] / measured

        yield Check(f"highest memory of {where}, % of measured", 100.0, read, _WITHIN)

"""How much the records of a part of a rank take once they are unpacked, without unpacking them.

How well records pack depends on the job, so the size of a file does not say it; each block does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..schema.errors import RunDirectoryError
from ..schema.record_payloads import SIZE_BYTES, decode_records, unpacked_size
from ..schema.records import STEP_RECORD
from ..schema.segment import payload_heads, read_segment, segment_paths


def unpacked_bytes(directory: Path) -> int:
    """Return how much the records in the segments of a part take; what is damaged is not counted."""
    return sum(
        unpacked_size(head)
        for path in _segments(directory)
        for head in payload_heads(path, SIZE_BYTES)
    )


def last_step(directory: Path) -> int:
    """Return the number of the last step in the segments of a part; -1 without one."""
    for path in reversed(_segments(directory)):
        with suppress(OSError, RunDirectoryError, ValueError, pa.ArrowException):
            for payload in reversed(read_segment(path).payloads):
                steps = list(_steps(payload))
                if steps:
                    return max(steps)
    return -1


def _segments(directory: Path) -> list[Path]:
    with suppress(OSError):
        return list(segment_paths(directory).values())
    return []


def _steps(payload: bytes) -> Iterator[int]:
    for record, table in decode_records(payload):
        if record is STEP_RECORD and table.num_rows:
            yield int(pc.max(table["step"]).as_py())

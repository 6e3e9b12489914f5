"""The columns of an NDTimeline parquet file, as they are in it: every analysis of these jobs reads them here."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import TraceFormatError

from ...tables.parquet_file import to_read
from ...wording.message import message

NDTIMELINE_COLUMNS = frozenset(
    ["dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id"]
)
"""Columns that an NDTimeline parquet file must have."""
MOST_ROWS = 1_000_000
"""Larger files are refused; a job of 8 workers has about 200 rows a step."""
_MOST_BYTES = 256 << 20
"""Bounds the memory of a read, whatever the rows hold."""


def read_columns(
    parquet: Path, *, optional: Collection[str] = (), is_bounded: bool = True
) -> pa.Table:
    """Return the columns of the format, and of the optional ones those that are there.

    Args:
        parquet: The file; it has the columns of the format.
        optional: Columns that only some files have.
        is_bounded: Refuse a file whose tables would not fit into memory beside it.

    Raises:
        TraceFormatError: The file is damaged or too large.
    """
    try:
        with pq.ParquetFile(to_read(parquet), read_dictionary=["optype"]) as file:
            if is_bounded:
                _check_size(file.metadata, parquet)
            present = {*optional} & {*file.schema_arrow.names}
            return file.read(columns=sorted(NDTIMELINE_COLUMNS | present))
    except (pa.ArrowException, OSError, KeyError) as error:  # KeyError: optype is nested
        reason = str(error).partition("\n")[0]
        raise TraceFormatError(
            message("refused.not_opened", reason=reason), where=str(parquet)
        ) from error


def _check_size(metadata: pq.FileMetaData, parquet: Path) -> None:
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    if metadata.num_rows <= MOST_ROWS and size <= _MOST_BYTES:
        return
    raise TraceFormatError(
        message(
            "refused.too_many_rows",
            rows=metadata.num_rows,
            size_bytes=size,
            most_rows=MOST_ROWS,
            most_bytes=_MOST_BYTES,
        ),
        where=str(parquet),
        remedy=message("advice.fewer_steps"),
    )

"""Records of a rank as the payload of a block of a segment, and back."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .packing import packed, unpacked
from .records import RECORD_TYPES, RecordType

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_PLAIN_BYTES = struct.Struct("<I")
"""How long the records are before compression, in front of them."""
_MOST_PLAIN_BYTES = 256 << 20
"""A payload that claims more is not read: a writer never puts as much into one."""
_RECORDS_BY_NAME = {record.name: record for record in RECORD_TYPES.values()}


def encode_records(rows: Mapping[str, NDArray[np.void]]) -> bytes:
    """Return records, by record name, as the payload of one block.

    All records that were drained together go into one block, so that a reader
    sees all of them or none. They are Arrow IPC streams one after the other,
    with the numbers of each column rearranged (``packing``), compressed
    together: that takes a third of what Arrow's own compression of each column does.
    """
    import pyarrow as pa

    # Not the default pool: it keeps megabytes that nobody uses.
    pool = pa.system_memory_pool()
    sink = pa.BufferOutputStream(memory_pool=pool)
    # No threads: Arrow would start a pool of its own in the training process.
    options = pa.ipc.IpcWriteOptions(use_threads=False)
    for name, records in rows.items():
        batch = records_to_batch(_RECORDS_BY_NAME[name], packed(records))
        with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
            stream.write_batch(batch)
    plain = sink.getvalue()
    compressed: bytes = pa.Codec("zstd").compress(plain, asbytes=True, memory_pool=pool)
    return _PLAIN_BYTES.pack(plain.size) + compressed


def records_to_batch(record: RecordType, rows: NDArray[np.void]) -> pa.RecordBatch:
    """Return records of one type as an Arrow batch of the same columns."""
    import numpy as np
    import pyarrow as pa

    schema = record.arrow_schema()
    # From buffers, because ``pa.array`` of a numpy array imports pandas: a fifth
    # of a second and 58 MB that a training process has no use for.
    columns = [
        pa.Array.from_buffers(
            column.type,
            len(rows),
            [None, pa.py_buffer(np.ascontiguousarray(rows[column.name]))],
        )
        for column in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def decode_records(payload: bytes) -> Iterator[tuple[RecordType, pa.Table]]:
    """Read what ``encode_records`` made.

    Raises:
        ValueError: It holds records of an unknown kind, or is no such payload
            (``pyarrow.ArrowInvalid`` is a ValueError).
        OSError: It cannot be decompressed.
    """
    import pyarrow as pa

    if not payload:
        return
    source = pa.BufferReader(_plain(payload))
    while source.tell() < source.size():
        with pa.ipc.open_stream(source) as stream:
            table = stream.read_all()
        metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
        name = metadata.get(b"meshscope.record", b"").decode(errors="replace")
        if name not in _RECORDS_BY_NAME:
            raise ValueError(f"holds records of unknown kind {name!r}")
        record = _RECORDS_BY_NAME[name]
        if table.schema != record.arrow_schema():
            raise ValueError(f"holds {name} records with other columns than declared")
        if any(column.null_count for column in table.columns):
            raise ValueError(f"holds {name} records without a value")
        yield record, pa.Table.from_batches([records_to_batch(record, _unpacked(record, table))])


def _plain(payload: bytes) -> pa.Buffer:
    import pyarrow as pa

    if len(payload) < _PLAIN_BYTES.size:
        raise ValueError("is shorter than its own length")
    (size,) = _PLAIN_BYTES.unpack_from(payload)
    if size > _MOST_PLAIN_BYTES:
        raise ValueError(f"claims {size} bytes of records")
    return pa.Codec("zstd").decompress(payload[_PLAIN_BYTES.size :], decompressed_size=size)


def _unpacked(record: RecordType, table: pa.Table) -> NDArray[np.void]:
    import numpy as np

    rows = np.zeros(table.num_rows, dtype=record.numpy_dtype())
    rows["code"] = record.code
    for name in table.column_names:
        rows[name] = table.column(name).to_numpy()
    return unpacked(rows)

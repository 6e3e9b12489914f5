"""The binary forms of the records."""

from struct import Struct

import numpy as np
import pytest

from meshscope.probe.schema.records import MADE_BY_THE_WRITER, MEMORY_VALUES, RECORD_TYPES
from meshscope.probe.schema.ring import (
    COMMIT_OFFSET,
    SLOT_BYTES,
    committed,
    slot_dtype,
    slot_format,
    split_records,
)
from meshscope.probe.schema.tables import MEMORY

IN_RINGS = [record for record in RECORD_TYPES.values() if record.name not in MADE_BY_THE_WRITER]


@pytest.mark.parametrize("record", RECORD_TYPES.values(), ids=lambda record: record.name)
def test_rows_and_columns_of_a_record_agree(record):
    """Fails when numpy and Arrow know other fields of a record."""
    schema = record.arrow_schema()
    assert record.numpy_dtype().names == ("code", *schema.names)
    assert schema.names[0] == "slot_seq"


@pytest.mark.parametrize("record", IN_RINGS, ids=lambda record: record.name)
def test_what_is_packed_into_a_slot_is_found_there(record):
    """Fails when writer and reader place a field differently, or a record outgrows its slot."""
    head = {name: 2 + at for at, (name, _) in enumerate(record.head_fields)}
    tail = {name: (1 << 40) + at for at, (name, _) in enumerate(record.tail_fields)}
    tail |= {name: 100 + at for at, (name, form) in enumerate(record.tail_fields) if form == "i"}
    values = list(tail.values())
    if "chunk" in tail:
        values[-2:] = [tail["chunk"] << 32 | tail["microbatch"]]
    store = Struct(slot_format(record))
    assert store.size == SLOT_BYTES == COMMIT_OFFSET + 8
    packed = store.pack(7, record.pack_head(*head.values()), *values, 7)
    slots = np.frombuffer(packed, slot_dtype())
    assert committed(slots).all()
    (row,) = split_records(slots)[record.name]
    wanted = {"code": record.code, "slot_seq": 7} | head | tail
    assert {name: int(row[name]) for name in row.dtype.names} == wanted


def test_a_flipped_bit_makes_no_other_type():
    """Fails when damage turns a record into one of another type that is then believed."""
    codes = list(RECORD_TYPES)
    assert all((a ^ b).bit_count() >= 2 for a in codes for b in codes if a != b)


def test_memory_record_has_every_byte_column():
    """Fails when the memory table gets a column that the recorder cannot store."""
    assert set(MEMORY_VALUES) == {c.name for c in MEMORY.columns if c.name.endswith("_bytes")}

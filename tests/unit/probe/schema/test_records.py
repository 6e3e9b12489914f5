"""The binary forms of the records."""

import struct

import numpy as np
import pytest

from meshscope.probe.schema.records import BODY_BYTES, MEMORY_VALUES, RECORD_TYPES
from meshscope.probe.schema.tables import MEMORY


@pytest.mark.parametrize("record", RECORD_TYPES.values(), ids=lambda record: record.name)
def test_forms_of_a_record_agree(record):
    """Fails when struct, numpy and Arrow place a field differently, or a record outgrows its slot."""
    dtype, schema = record.numpy_dtype(), record.arrow_schema()
    assert record.size_bytes == dtype.itemsize <= BODY_BYTES
    assert dtype.names == ("code", *schema.names)
    assert schema.names[0] == "slot_seq"
    values = range(1, 2 + len(record.fields))
    packed = struct.pack(record.struct_format, *values)
    assert np.frombuffer(packed, dtype)[0].tolist() == tuple(values)


def test_memory_record_has_every_byte_column():
    """Fails when the memory table gets a column that the recorder cannot store."""
    assert set(MEMORY_VALUES) == {c.name for c in MEMORY.columns if c.name.endswith("_bytes")}

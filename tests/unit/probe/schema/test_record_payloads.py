"""Records as payloads of blocks: they come back as they were, and odd ones are refused."""

import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

from meshscope.probe.schema.record_payloads import decode_records, encode_records
from meshscope.probe.schema.records import SPAN_RECORD, STEP_RECORD


def test_records_survive_encoding():
    """Fails when a record changes on its way through Arrow, or one kind hides the next."""
    steps, spans = (np.zeros(3, record.numpy_dtype()) for record in (STEP_RECORD, SPAN_RECORD))
    steps["step"], steps["dur_ns"] = [1, 2, 3], [-1, 0, 1 << 60]
    spans["kind"] = [0, 255, 7]
    payload = bytes(encode_records({"step": steps, "span": spans}))
    decoded = dict(decode_records(payload))
    assert list(decoded) == [STEP_RECORD, SPAN_RECORD]
    for record, rows in ((STEP_RECORD, steps), (SPAN_RECORD, spans)):
        for name, _ in record.fields:
            assert decoded[record][name].to_pylist() == rows[name].tolist()


def test_payload_that_is_no_stream_is_a_value_error():
    """Fails when an odd block ends the reader with an undeclared error."""
    for payload in (
        b"no Arrow stream at all",
        b"\x08\0\0\0no zlib",
        b"\x08\0\0\0\x28\xb5\x2f\xfdno zstd",
        b"\xff\xff\xff\xff",
        b"\0",
    ):
        with pytest.raises((ValueError, OSError)):
            list(decode_records(payload))
    assert list(decode_records(b"")) == []


def compressed(stream, *, claimed=None):
    """Return an Arrow stream as the payload of a block, which may claim another length."""
    return struct.pack("<I", claimed or len(stream)) + zlib.compress(stream)


def test_a_payload_of_version_3_is_read():
    """Fails when captures that were made before the codec changed are lost."""
    steps = np.zeros(3, STEP_RECORD.numpy_dtype())
    steps["step"] = [4, 5, 6]
    plain = zlib.decompress(encode_records({"step": steps})[4:])
    old = struct.pack("<I", len(plain)) + pa.Codec("zstd").compress(plain, asbytes=True)
    ((record, table),) = decode_records(old)
    assert (record, table["step"].to_pylist()) == (STEP_RECORD, [4, 5, 6])


@pytest.mark.parametrize("claimed", [8, (1 << 20) - 1, 1 << 21])
def test_a_payload_of_another_length_than_it_claims_is_refused(claimed):
    """Fails when a block that unpacks to more than it says is unpacked all the same."""
    with pytest.raises(ValueError, match="that it claims"):
        list(decode_records(compressed(bytes(1 << 20), claimed=claimed)))


def test_foreign_arrow_stream_is_refused():
    """Fails when a table that is no capture is taken for records."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("step", pa.int64())])) as stream:
        stream.write_batch(pa.record_batch({"step": pa.array([1])}))
    with pytest.raises(ValueError, match="unknown kind"):
        list(decode_records(compressed(sink.getvalue().to_pybytes())))

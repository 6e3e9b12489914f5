"""What the records of a rank take is known before they are unpacked."""

import numpy as np

from meshscope.probe.reader.part_sizes import last_step, unpacked_bytes
from meshscope.probe.schema.record_payloads import encode_records
from meshscope.probe.schema.records import SPAN_RECORD, STEP_RECORD
from meshscope.probe.schema.segment import SegmentFile, segment_path

ROWS = 1000


def records(record, first=0):
    """Return records that pack well, with steps from one on."""
    rows = np.zeros(ROWS, record.numpy_dtype())
    rows["step"] = first + np.arange(ROWS)
    return rows


def write(directory, number, *blocks):
    """Write a segment that its writer closed."""
    file = SegmentFile(directory, rank=0, number=number)
    for block in blocks:
        file.append(encode_records(block))
    file.close()


def plain(record):
    """Return the bytes of the records of a block."""
    return ROWS * sum(np.dtype(form).itemsize for _, form in record.fields)


def test_the_unpacked_size_is_read_from_the_heads_of_blocks(tmp_path):
    """Fails when a block is counted by its packed size, or left out: a limit of memory would be exceeded."""
    write(tmp_path, 1, {"span": records(SPAN_RECORD)}, {"span": records(SPAN_RECORD)})
    write(tmp_path, 2, {"step": records(STEP_RECORD)})
    least = 2 * plain(SPAN_RECORD) + plain(STEP_RECORD)
    assert least <= unpacked_bytes(tmp_path) < 1.1 * least
    packed = sum(segment_path(tmp_path, number).stat().st_size for number in (1, 2))
    assert packed < least / 5


def test_the_last_step_is_that_of_the_last_block_with_one(tmp_path):
    """Fails when room for the rows of a run is counted by its first steps, or passes hide the last step."""
    write(tmp_path, 1, {"step": records(STEP_RECORD)}, {"step": records(STEP_RECORD, ROWS)})
    write(tmp_path, 2, {"span": records(SPAN_RECORD, 5 * ROWS)})
    assert last_step(tmp_path) == 2 * ROWS - 1


def test_damage_and_absence_count_nothing(tmp_path):
    """Fails when a damaged file ends the command, or a forged size makes it refuse every limit."""
    assert unpacked_bytes(tmp_path / "gone") == 0
    assert last_step(tmp_path / "gone") == -1
    file = SegmentFile(tmp_path, rank=0, number=1)
    file.append(b"\xff\xff\xff\xff forged")
    file.append(b"\0")
    file.close()
    segment_path(tmp_path, 2).write_bytes(b"MSBD" + b"\xff" * 12 + b"\x10")
    segment_path(tmp_path, 3).write_bytes(b"no segment at all")
    segment_path(tmp_path, 4).write_bytes(b"")
    assert unpacked_bytes(tmp_path) == 0
    assert last_step(tmp_path) == -1

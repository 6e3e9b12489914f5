"""Reading a ring: what is good stays readable, what is not is told."""

import struct
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.ring_records import store_steps

from meshscope.probe.recording.ring import RingWriter
from meshscope.probe.schema.errors import FormatVersionError, SegmentError
from meshscope.probe.schema.ring import (
    COMMIT_OFFSET,
    HEADER_BYTES,
    MAGIC,
    SLOT_BYTES,
    RingHeader,
    _doubtful,
    _intact,
    _read_again,
    read_ring,
    slot_dtype,
)
from meshscope.probe.schema.tables import FORMAT_VERSION


@pytest.fixture
def ring_path(make_recorder, run_path) -> Path:
    """Return the ring of a finished recorder with 300 steps in 256 slots."""
    recorder = make_recorder()
    for step in range(300):
        recorder.record_step(step, 1, 2)
    recorder.close()
    return run_path / "rank00000" / "ring.bin"


@pytest.mark.parametrize("byte", [0, 7, 8, COMMIT_OFFSET, COMMIT_OFFSET + 7])
def test_flipped_byte_is_found_in_what_tells_a_record(ring_path, flip_byte, byte):
    """Fails when a damaged number, type or commit word is used as if it were good."""
    slot = 100
    flip_byte(ring_path, HEADER_BYTES + slot * SLOT_BYTES + byte)
    found = read_ring(ring_path)
    assert found.damaged == (slot,)
    assert sorted(found.records["step"]["step"].tolist()) == sorted({*range(44, 300)} - {99})


def test_damage_in_the_newest_slot_is_no_torn_record(ring_path, flip_byte):
    """Fails when corruption of the last record passes for a record that was being written."""
    flip_byte(ring_path, HEADER_BYTES + 300 % 256 * SLOT_BYTES + 5)
    found = read_ring(ring_path)
    assert (found.damaged, found.uncommitted) == ((300 % 256,), 0)


def test_cut_ring_gives_what_is_left(ring_path):
    """Fails when a partly copied ring is refused, or read beyond its end."""
    content = ring_path.read_bytes()
    ring_path.write_bytes(content[: HEADER_BYTES + 100 * SLOT_BYTES + 7])
    found = read_ring(ring_path)
    assert len(found.records["step"]) == 100
    assert found.missing_slots == 156


def test_unused_ring_is_empty(make_recorder, run_path):
    """Fails when a rank that recorded nothing yet cannot be read."""
    make_recorder()
    found = read_ring(run_path / "rank00000" / "ring.bin")
    assert (found.records, found.damaged, found.uncommitted) == ({}, (), 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a ring file"),
        (b"PAR1" * 2000, "is not a ring file"),
        (MAGIC, "is not a ring file"),
        (MAGIC + b"\0" * 4088, "the ring header is damaged"),
    ],
    ids=["empty", "foreign", "short", "no-header"],
)
def test_other_files_are_refused(tmp_path, content, message):
    """Fails when something that is no ring is read as one."""
    path = tmp_path / "ring.bin"
    path.write_bytes(content)
    with pytest.raises(SegmentError, match=message):
        read_ring(path)


def test_flipped_header_is_damage_and_not_another_version(ring_path, flip_byte):
    """Fails when a damaged header sends the user looking for another release."""
    flip_byte(ring_path, len(MAGIC))
    with pytest.raises(SegmentError, match="the ring header is damaged"):
        read_ring(ring_path)


def test_unknown_version_is_named(tmp_path):
    """Fails when a ring of a newer format is misread instead of refused."""
    path = tmp_path / "ring.bin"
    path.write_bytes(RingHeader(77, SLOT_BYTES, 64, 0, 1).pack() + b"\0" * 8192)
    with pytest.raises(FormatVersionError) as caught:
        read_ring(path)
    assert "77" in caught.value.what
    assert f"version {FORMAT_VERSION}" in caught.value.what
    assert caught.value.remedy


def test_header_layout_is_fixed(ring_path):
    """Fails when the part of the header that every version shares moves."""
    head = ring_path.read_bytes()[:32]
    magic, version, slot_bytes, slots, rank, _, crc = struct.unpack("<8sIIIIII", head)
    assert (magic, version, slot_bytes, slots, rank) == (b"MSHRING\n", FORMAT_VERSION, 128, 256, 0)
    assert crc == zlib.crc32(head[:28])


def test_live_ring_is_read_without_gaps(tmp_path):
    """Fails when a reader misses records that were written while it read."""
    ring = RingWriter(tmp_path, rank=0, slot_count=65536)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            store_steps(ring, 300)
            time.sleep(0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(12):
            found = read_ring(tmp_path / "ring.bin")
            seqs = sorted(found.records.get("step", {"slot_seq": np.zeros(0)})["slot_seq"])
            assert found.damaged == ()
            assert np.all(np.diff(seqs) == 1)
    finally:
        stop.set()
        writer.join()


def test_a_place_that_was_read_before_its_record_came_is_read_again(tmp_path):
    """Fails when a reader that was held up amid a live ring leaves out what came meanwhile."""
    ring = RingWriter(tmp_path, rank=0, slot_count=64)
    store_steps(ring, 20)
    with open(tmp_path / "ring.bin", "rb") as file:
        header = RingHeader.unpack(file.read(HEADER_BYTES), "ring")
        slots = np.frombuffer(bytearray(file.read()), dtype=slot_dtype())
        slots[7:10] = np.zeros(3, slots.dtype)
        places = _doubtful(slots, _intact(slots, header), header)
        assert {7, 8, 9} <= set(places.tolist())
        assert not {0, *range(21, 64)} & set(places.tolist())
        assert _read_again(file.fileno(), slots, places)
    assert slots["slot_seq"][7:10].tolist() == [7, 8, 9]


def test_what_a_writer_has_overtaken_is_not_damaged(tmp_path, monkeypatch):
    """Fails when a reader that was held up too long calls whole records damaged."""
    ring = RingWriter(tmp_path, rank=0, slot_count=64)
    store_steps(ring, 20)
    path = tmp_path / "ring.bin"
    # The reader looked at these places before their records came, and at the others after.
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + 7 * SLOT_BYTES)
        file.write(bytes(3 * SLOT_BYTES))
    monkeypatch.setattr("meshscope.probe.schema.ring._READ_ATTEMPTS", 0)
    found = read_ring(path)
    assert (found.damaged, found.uncommitted) == ((), 0)
    assert found.records["step"]["slot_seq"].max() < 7

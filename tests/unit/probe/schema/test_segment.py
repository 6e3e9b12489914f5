"""Segment files: damage is found, named, and limited to its block."""

import json
import struct
import zlib
from pathlib import Path

import pytest

from meshscope.probe.schema.errors import FormatVersionError
from meshscope.probe.schema.segment import SegmentFile, read_segment, segment_path, segment_paths

PAYLOADS = [b"first", b"second payload", b"", b"MSB is no block here"]
HEAD_BYTES = 16


@pytest.fixture
def segment(tmp_path) -> Path:
    """Return a closed segment with four data blocks."""
    file = SegmentFile(tmp_path, rank=0, number=1)
    for payload in PAYLOADS:
        file.append(payload)
    file.close()
    return file.path


def block_offsets(path: Path) -> list[int]:
    """Return where each block of an intact segment starts, and the end."""
    content, offsets = path.read_bytes(), [0]
    while offsets[-1] < len(content):
        offsets.append(
            offsets[-1] + HEAD_BYTES + struct.unpack_from("<I", content, offsets[-1] + 4)[0]
        )
    return offsets


def test_intact_segment(segment):
    """Fails when blocks do not come back as they were written."""
    found = read_segment(segment)
    assert (found.payloads, found.closed, found.problems) == (PAYLOADS, True, [])


@pytest.mark.parametrize("byte", [0, 3, 4, 7, 8, 12, HEAD_BYTES + 2])
def test_flipped_byte_costs_one_block(segment, flip_byte, byte):
    """Fails when a damaged header or payload is used, or takes other blocks with it."""
    start = block_offsets(segment)[2]
    flip_byte(segment, start + byte)
    found = read_segment(segment)
    assert found.payloads == [PAYLOADS[0], *PAYLOADS[2:]]
    assert found.problems == [f"block 2 is damaged (checksum) at byte {start}"]
    assert found.closed


def test_damage_over_several_blocks_is_counted(segment):
    """Fails when the extent of a damage is understated."""
    content = bytearray(segment.read_bytes())
    first, end = block_offsets(segment)[1], block_offsets(segment)[3]
    content[first:end] = bytes(end - first)
    segment.write_bytes(content)
    found = read_segment(segment)
    assert found.payloads == PAYLOADS[2:]
    assert found.problems == [f"blocks 1 to 2 are damaged (checksum) at byte {first}"]


def test_every_torn_tail_keeps_what_is_before_it(segment):
    """Fails when a write that was cut off anywhere breaks the reader or loses a whole block."""
    content, offsets = segment.read_bytes(), block_offsets(segment)
    for end in range(1, len(content)):
        segment.write_bytes(content[:end])
        found = read_segment(segment)
        whole = sum(offset <= end for offset in offsets[2:])
        assert found.payloads == PAYLOADS[:whole]
        assert not found.closed
        assert bool(found.problems) == (end not in offsets)
        assert all("torn" in problem for problem in found.problems)


def test_damaged_last_block_is_not_called_torn(segment, flip_byte):
    """Fails when corruption of the end mark passes for a killed writer."""
    flip_byte(segment, block_offsets(segment)[-2] + 9)
    (problem,) = read_segment(segment).problems
    assert "block 5 is damaged" in problem


def test_missing_block_in_the_middle_is_noticed(segment):
    """Fails when a file from which a whole block was cut out looks complete."""
    content, offsets = segment.read_bytes(), block_offsets(segment)
    segment.write_bytes(content[: offsets[2]] + content[offsets[3] :])
    found = read_segment(segment)
    assert found.payloads == [PAYLOADS[0], *PAYLOADS[2:]]
    assert found.problems == ["block 2 is missing"]


def test_bytes_after_the_end_mark_are_noticed(segment):
    """Fails when something was appended to a closed segment and nobody is told."""
    segment.write_bytes(segment.read_bytes() + b"more")
    assert read_segment(segment).problems == ["4 bytes follow the end mark"]


@pytest.mark.parametrize("content", [b"", b"ARROW1" * 100, b"\0" * 64])
def test_foreign_file_gives_a_problem_and_no_payload(tmp_path, content):
    """Fails when a file that is no segment is read without complaint, or crashes the reader."""
    path = segment_path(tmp_path, 1)
    path.write_bytes(content)
    found = read_segment(path)
    assert found.payloads == []
    assert found.problems


@pytest.mark.parametrize("facts", [{"format_version": 9}, {}, [1]])
def test_unknown_version_is_refused(tmp_path, facts):
    """Fails when the segment of another format version is misread."""
    payload = json.dumps(facts).encode()
    guarded = b"MSBH" + struct.pack("<II", len(payload), 0)
    crc = zlib.crc32(payload, zlib.crc32(guarded))
    path = segment_path(tmp_path, 1)
    path.write_bytes(struct.pack("<4sIII", b"MSBH", len(payload), crc, 0) + payload)
    with pytest.raises(FormatVersionError, match="format version"):
        read_segment(path)


def test_segments_are_listed_by_number(tmp_path):
    """Fails when segments are read in another order than they were written, or others with them."""
    for name in ("seg-000010.arrows", "seg-000002.arrows", "seg-000002.arrows.bak", "seg-x.arrows"):
        (tmp_path / name).touch()
    assert list(segment_paths(tmp_path)) == [2, 10]

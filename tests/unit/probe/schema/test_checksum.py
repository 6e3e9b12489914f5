"""Checksums of many rows at once."""

import zlib

import numpy as np
import pytest

from meshscope.probe.schema.checksum import crc32_rows


@pytest.mark.parametrize("length", [0, 1, 41, 110])
def test_equals_zlib(length):
    """Fails when the reader's checksum is another one than the writer's."""
    rows = np.random.default_rng(length).integers(0, 256, (50, length)).astype(np.uint8)
    assert crc32_rows(rows).tolist() == [zlib.crc32(row.tobytes()) for row in rows]


def test_no_rows():
    """Fails when a ring without records of one kind cannot be read."""
    assert crc32_rows(np.zeros((0, 41), np.uint8)).tolist() == []

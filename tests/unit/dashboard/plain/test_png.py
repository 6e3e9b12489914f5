"""The PNG writer, against the format."""

import struct
import zlib

import numpy as np
import pytest

from meshscope.dashboard.plain.png import encode_png

PALETTE = bytes(range(12))


def _chunks(image: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a PNG by type, after checking each checksum."""
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    found, at = {}, 8
    while at < len(image):
        (length,) = struct.unpack_from(">I", image, at)
        tag, body = image[at + 4 : at + 8], image[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", image, at + 8 + length) == (zlib.crc32(tag + body),)
        found[tag] = body
        at += 12 + length
    return found


def test_pixels_survive():
    """Fails when a decoder would see other pixels, another size or another palette."""
    pixels = np.array([[0, 1, 2], [3, 3, 0]], dtype=np.uint8)
    chunks = _chunks(encode_png(pixels, PALETTE))
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (3, 2, 8, 3, 0, 0, 0)
    assert chunks[b"PLTE"] == PALETTE
    assert zlib.decompress(chunks[b"IDAT"]) == b"\0\0\1\2" + b"\0\3\3\0"


def test_one_colour_can_be_clear():
    """Fails when what nothing covers hides the page below it, or another colour does not."""
    chunks = _chunks(encode_png(np.array([[0, 1, 2]], dtype=np.uint8), PALETTE, clear=1))
    assert list(chunks) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    assert chunks[b"tRNS"] == b"\xff\x00"


@pytest.mark.parametrize(
    "pixels", [np.zeros((0, 4), np.uint8), np.zeros(4, np.uint8), np.full((1, 1), 4, np.uint8)]
)
def test_what_is_no_picture_is_refused(pixels):
    """Fails when an empty tile or a colour without a palette entry is written anyway."""
    with pytest.raises(ValueError, match=r"tile|palette"):
        encode_png(pixels, PALETTE)

"""Rings in memory, of which the file is a copy."""

import os

import pytest
from tests.ring_records import store_steps

from meshscope.probe.recording.ring import RingWriter
from meshscope.probe.recording.ring_copy import RingCopy
from meshscope.probe.schema.ring import read_ring


@pytest.fixture
def ring(tmp_path):
    """Return a ring of 64 slots that is not mapped from its file."""
    return RingWriter(tmp_path, rank=3, slot_count=64, is_mapped=False)


@pytest.fixture
def copy(tmp_path, ring):
    """Return what brings the ring to its file."""
    return RingCopy(tmp_path, ring)


def test_a_copy_is_what_a_mapped_ring_would_be(ring, copy, tmp_path):
    """Fails when the file of a copied ring is another one than that of a mapped ring."""
    mapped_in = tmp_path / "mapped"
    mapped_in.mkdir()
    mapped = RingWriter(mapped_in, rank=3, slot_count=64)
    for steps in (range(10), range(10, 90), range(90, 91)):
        for each in (ring, mapped):
            store_steps(each, len(steps))
            each.give_sign_of_life(steps[0] + 1)
        copy.store(copy.changes())
        assert (tmp_path / "ring.bin").read_bytes() == (mapped_in / "ring.bin").read_bytes()


def test_only_what_is_new_is_written(ring, copy):
    """Fails when each copy writes the whole ring over the network again."""
    store_steps(ring, 10)
    copy.store(copy.changes())
    store_steps(ring, 3)
    places = copy.changes()
    assert [len(content) for _, content in places] == [4096, 3 * 128]


def test_a_copy_that_failed_is_made_up_for(ring, copy, tmp_path):
    """Fails when records that a disk refused are never tried again."""
    store_steps(ring, 5)
    away = tmp_path / "away"
    (tmp_path / "ring.bin").rename(away)
    with pytest.raises(OSError, match="No such file"):
        copy.store(copy.changes())
    away.rename(tmp_path / "ring.bin")
    store_steps(ring, 2)
    copy.store(copy.changes())
    assert read_ring(tmp_path / "ring.bin").records["step"]["step"].tolist() == list(range(1, 8))


def test_a_link_in_place_of_the_ring_is_refused(ring, copy, tmp_path):
    """Fails when a planted link sends a copy into another file."""
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (tmp_path / "ring.bin").unlink()
    (tmp_path / "ring.bin").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        copy.store(copy.changes())
    assert victim.read_text() == "keep"


def test_before_the_first_copy_the_file_is_an_empty_ring(ring, tmp_path):
    """Fails when a run that has just begun looks damaged, or an empty ring goes over the network."""
    found = read_ring(tmp_path / "ring.bin")
    assert (found.header.rank, found.header.slot_count) == (3, 64)
    assert (found.damaged, found.uncommitted, found.missing_slots) == ((), 0, 0)
    assert os.stat(tmp_path / "ring.bin").st_blocks * 512 <= 4096

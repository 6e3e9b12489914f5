"""Rings in memory, of which the file is a copy."""

import os

import pytest
from tests.ring_records import store_steps

from meshscope.probe.recording import ring_copy
from meshscope.probe.recording.ring import RingWriter
from meshscope.probe.recording.ring_copy import (
    UNKNOWN,
    RingCopy,
    file_system_of,
    slow_file_system_of,
)
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


MOUNTS = """\
21 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw
22 21 0:20 / /runs rw - nfs4 server:/runs rw,vers=4.2
23 22 0:21 / /runs/local rw master:2 - tmpfs none rw
24 21 0:22 / /with\\040blank rw - lustre a@tcp:/fs rw
25 21 0:23 / /twice rw - ext4 /dev/b rw
26 25 0:24 / /twice rw - fuse.sshfs host:/ rw
a line of another form
"""


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """Let the kernel's list of mounts be a file of the test."""
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    monkeypatch.setattr(ring_copy, "_MOUNTS", path)
    return path


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/data/a", "ext4"),
        ("/runs", "nfs4"),
        ("/runs/a/rank00000", "nfs4"),
        ("/runs/local/a", "tmpfs"),
        ("/runs2/a", "ext4"),
        ("/with blank/a", "lustre"),
        ("/twice/a", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_counts(mounts, place, kind):
    """Fails when a network directory is taken for the local one around it, or the reverse."""
    assert file_system_of(place) == kind


def test_a_link_is_followed(mounts, tmp_path):
    """Fails when a run directory that is a link to a server is taken for a local one."""
    link = tmp_path / "runs"
    link.symlink_to("/runs/a")
    assert file_system_of(link) == "nfs4"


def test_this_machine_is_understood(tmp_path):
    """Fails when the real list of mounts is not understood."""
    assert file_system_of(tmp_path) != UNKNOWN
    if os.path.ismount("/dev/shm"):
        assert file_system_of("/dev/shm") == "tmpfs"


def test_what_is_not_known_may_wait(mounts):
    """Fails when a store is trusted not to wait where nobody knows what is mounted."""
    mounts.unlink()
    assert slow_file_system_of("/runs") == UNKNOWN


@pytest.mark.parametrize(
    ("kind", "is_slow"),
    [
        *(
            (kind, True)
            for kind in ("nfs", "nfs4", "lustre", "gpfs", "fuse.x", "cifs", "btrfs", "zfs")
        ),
        *((kind, False) for kind in ("ext4", "xfs", "tmpfs", "overlay")),
    ],
)
def test_servers_and_copy_on_write_may_wait(mounts, kind, is_slow):
    """Fails when training stores into a page that a server, or a full disk, can hold up."""
    mounts.write_text(f"21 1 259:1 / / rw,relatime shared:1 - {kind} /dev/nvme0n1p1 rw\n")
    assert slow_file_system_of("/runs") == (kind if is_slow else None)
